"""`[data]`, `[data.partition]` and `[data.phases]`: the data set and its split among the clients."""

from collections.abc import Callable
from typing import Any, Literal, Self

from pydantic import Field, SerializeAsAny, field_serializer, field_validator, model_validator

from raybcgd.errors import ConfigError
from raybcgd.registry import Registry
from raybcgd.section import Section

_TORCHVISION = ("cifar10", "cifar100", "mnist", "fashion_mnist", "emnist")

SOURCES = Registry(
    "data.source",
    {
        "digits": "raybcgd.data.sources:digits",
        "parquet": "raybcgd.data.sources:parquet",
        "image_folder": "raybcgd.data.sources:image_folder",
        "tiny_imagenet": "raybcgd.data.sources:tiny_imagenet",
        **dict.fromkeys(_TORCHVISION, "raybcgd.data.sources:torchvision_set"),
    },
)
PARTITIONS = Registry(
    "data.partition.kind",
    {
        "iid": "raybcgd.data.partition:IID",
        "natural": "raybcgd.data.partition:Natural",
        "dirichlet": "raybcgd.data.partition:Dirichlet",
        "dirichlet_free": "raybcgd.data.partition:DirichletFree",
        "shards": "raybcgd.data.partition:Shards",
        "lognormal": "raybcgd.data.partition:LogNormal",
    },
    base="raybcgd.data.partition:Partitioner",
)
DEFAULT_PARTITION = "dirichlet"
_FILES = ("parquet", "image_folder", "tiny_imagenet", *_TORCHVISION)
_MAYBE_PARQUET = tuple(name for name in _FILES if name != "image_folder")
_READERS = {
    **dict.fromkeys(("root", "image_size", "classes"), _FILES),
    **dict.fromkeys(("image_column", "label_column", "client_column"), _MAYBE_PARQUET),
    "feature_columns": ("parquet",),
    "download": _TORCHVISION,
    "emnist_split": ("emnist",),
    "options": (),
}
"""The built-in sources that read each setting. Custom sources may read all settings."""


def unread_by(source: Any) -> set[str]:
    """Return the settings that have no effect with a source."""
    return {name for name, readers in _READERS.items() if source in ("digits", *_FILES) and source not in readers}


class PartitionConfig(Section):
    """`[data.partition]`: the settings that all partitions share. `kind` chooses the class. If no setting of this table
    is set, a data set with its own clients uses kind = "natural"."""

    clients: int = Field(50, ge=1)
    """M, the number of clients."""
    samples_per_client: int | None = Field(None, ge=1)
    """Maximum number of samples per client, chosen at random. None: no limit."""


class PhasesConfig(Section):
    """`[data.phases]`: block-cyclic data. Each phase has its own labels, and the phases take turns."""

    count: int = Field(5, ge=1)
    """D, the number of phases per cycle."""
    rounds_per_phase: int = Field(10, ge=1)
    """Rounds per phase. After the last phase, the first one starts again."""
    shared_labels: int = Field(0, ge=0)
    """Number of extra labels per phase, taken from the phases that follow it. The last phase is followed by the
    first."""
    labels: tuple[tuple[int, ...], ...] | None = None
    """The labels of each phase. They may overlap freely. Default: consecutive labels, plus `shared_labels`."""
    deal: Literal["sequence", "random"] = "sequence"
    """How the samples of a phase are dealt to the clients. sequence: in the order of their labels, as in the paper.
    random: every client has mixed labels."""
    size_deviation: float = Field(0.2, ge=0, le=10)
    """Standard deviation of the client sizes in a phase, as a fraction of the mean. Sizes are normally distributed."""
    shuffled: bool = False
    """Train on all data in every round: the samples of all phases are dealt to the clients at random. Models are still
    evaluated per phase. The paper compares with FedAvg on such data."""

    @model_validator(mode="after")
    def _labels_of_every_phase(self) -> Self:
        if self.labels is not None and len(self.labels) != self.count:
            raise ValueError(f"labels has {len(self.labels)} phases, but count = {self.count}; change one")
        return self

    def at(self, round_index: int) -> int:
        """Return the data phase of a round."""
        return round_index // self.rounds_per_phase % self.count


class DataConfig(Section):
    """`[data]`: the data set."""

    source: str | Callable[..., Any] = "digits"
    """The data set, or "package.module:function": a function that takes this table and returns a raybcgd.Dataset.
    digits needs no files. The others read files in `root`; data sets such as cifar10 can also be Parquet files."""
    root: str | None = None
    """Folder that contains the files. If relative, it is resolved against the current folder, not the config's."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings for a custom source."""
    download: bool = False
    """Download a torchvision data set into `root` if it is missing."""
    image_column: str | None = None
    """Parquet column of the images. Default: detected by name and type."""
    label_column: str | None = None
    """Parquet column of the integer labels, or of the numbers to predict with task = "regression". Default: detected by
    name and type."""
    feature_columns: tuple[str, ...] | None = None
    """Parquet columns of the inputs, if these are not images: columns of numbers, or one column of lists, such as token
    sequences, which are padded with 0. Default: a column of lists, or all columns of numbers that are not targets or
    client ids."""
    client_column: str | None = None
    """Parquet column of client ids, integers or strings: every id is a client, and `partition.kind` is "natural"."""
    image_size: int | None = Field(None, ge=1, le=4096)
    """Resize image files to this many pixels per side. None: no resizing; all images must have the same size."""
    classes: int | None = Field(None, ge=2)
    """Number of classes in the files. Default: as declared in the files, or the largest training label + 1."""
    emnist_split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "byclass"
    """The EMNIST variant."""
    task: Literal["classes", "binary", "regression"] = "classes"
    """binary: two classes, for the convex experiments. The labels in `positive` become 1, all others 0. regression: the
    targets are numbers; set `model.loss` to mse or l1. Data sets from Python with float targets need no task."""
    positive: tuple[int, ...] | None = None
    """Labels that become 1 with task = "binary". Default: the lower half."""
    test_samples: int | None = Field(None, ge=1)
    """Evaluate on at most this many test samples. Every run uses the same ones. None: all."""
    validation_share: float = Field(0.0, ge=0, lt=1)
    """Fraction of the training samples of each label that is held out to tune hyper-parameters."""
    evaluate_on: Literal["test", "validation"] = "test"
    """validation: evaluate on the held-out training samples, so that tuning never sees the test data."""
    augment: tuple[Literal["crop", "flip"], ...] = ()
    """Augmentation of training images. crop: random crops. flip: random horizontal flips."""
    partition: SerializeAsAny[PartitionConfig] = Field(
        default_factory=lambda: PARTITIONS.section({}, DEFAULT_PARTITION)
    )
    phases: PhasesConfig | None = None
    """Block-cyclic data. Of the partition's settings, only `clients` applies. None: all data in every round."""

    @model_validator(mode="after")
    def _something_to_evaluate_on(self) -> Self:
        if self.evaluate_on == "validation" and self.validation_share == 0:
            raise ValueError('evaluate_on = "validation" needs validation_share; set it to 0.01 or more')
        return self

    @model_validator(mode="after")
    def _nothing_without_effect(self) -> Self:
        unread = unread_by(self.source)
        for name, field in type(self).model_fields.items():
            if name in unread and getattr(self, name) != field.get_default(call_default_factory=True):
                raise ConfigError(f'data.{name} has no effect with data.source = "{self.source}"; remove it')
        if self.positive is not None and self.task != "binary":
            raise ConfigError('data.positive has no effect without data.task = "binary"; remove it, or set the task')
        return self

    @model_validator(mode="before")
    @classmethod
    def _clients_of_the_column(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("client_column") is not None:
            part = values.get("partition", {})
            return {**values, "partition": {"kind": "natural", **part} if isinstance(part, dict) else part}
        if isinstance(values, dict) and values.get("partition") == {}:  # an empty table sets nothing
            return {key: value for key, value in values.items() if key != "partition"}
        return values

    @property
    def partition_is_set(self) -> bool:
        """Whether a file, an override or Python set the partition, even to its default."""
        return "partition" in self.model_fields_set

    @field_validator("partition", mode="before")
    @classmethod
    def _partition_of_its_kind(cls, value: Any) -> Any:
        return PARTITIONS.section(value, DEFAULT_PARTITION)

    @field_serializer("partition")
    def _partition_with_kind(self, partition: PartitionConfig) -> dict[str, Any]:
        return PARTITIONS.dump(partition)

    @field_serializer("source")
    def _source_by_name(self, source: Any) -> str:
        return SOURCES.name_of(source)
