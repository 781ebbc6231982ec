"""`[data]`, `[data.partition]` and `[data.phases]`: the training data and how clients get it."""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, field_serializer, field_validator

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
        "dirichlet": "raybcgd.data.partition:Dirichlet",
        "dirichlet_free": "raybcgd.data.partition:DirichletFree",
        "shards": "raybcgd.data.partition:Shards",
        "lognormal": "raybcgd.data.partition:LogNormal",
    },
    base="raybcgd.data.partition:Partitioner",
)
DEFAULT_PARTITION = "dirichlet"


class PartitionConfig(Section):
    """`[data.partition]`: the settings that all partitions share; `kind` names the class."""

    clients: int = Field(50, ge=1)
    """M, the number of clients."""
    samples_per_client: int | None = Field(None, ge=1)
    """Maximum samples per client; a random choice of the others is left out. None: no limit."""


class PhasesConfig(Section):
    """`[data.phases]`: block-cyclic data. The training labels come in phases, cycle after cycle."""

    count: int = Field(5, ge=1)
    """D, the phases per cycle."""
    rounds_per_phase: int = Field(10, ge=1)
    """Rounds before the next phase starts. The first phase follows the last one."""
    shared_labels: int = Field(0, ge=0)
    """Labels that each phase shares with the next one, in addition to its own. The last phase shares with the first."""
    size_deviation: float = Field(0.2, ge=0, le=10)
    """Standard deviation of the client sizes within a phase, as a fraction of their mean. Sizes are normal."""

    def at(self, round_index: int) -> int:
        """Return the data phase of a round."""
        return round_index // self.rounds_per_phase % self.count


class DataConfig(Section):
    """`[data]`: what the clients train on."""

    source: str | Callable[..., Any] = "digits"
    """digits (embedded), parquet, image_folder, tiny_imagenet, cifar10, cifar100, mnist, fashion_mnist, emnist, or
    "package.module:function", called with this table. All built-in sources but digits read `root`; the named data sets
    also accept a folder of Parquet files there."""
    root: str | None = None
    """The folder of the files."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Free settings for a custom source."""
    download: bool = False
    """Download a torchvision data set into `root` if it is missing."""
    image_column: str | None = None
    """Parquet column of the images. None: found by name and type."""
    label_column: str | None = None
    """Parquet column of the integer labels. None: found by name and type."""
    image_size: int | None = Field(None, ge=1, le=4096)
    """Resize image files to this many pixels per side. None: they must all have the same size."""
    classes: int | None = Field(None, ge=2)
    """Number of classes in image files. None: what the files declare, or the largest training label + 1."""
    emnist_split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "byclass"
    """The EMNIST variant."""
    task: Literal["classes", "binary"] = "classes"
    """binary: two classes, for the convex experiments. Label 1 is `positive`, label 0 is the rest."""
    positive: tuple[int, ...] | None = None
    """Labels that become 1 with task = "binary". None: the lower half of the labels."""
    test_samples: int | None = Field(None, ge=1)
    """Evaluate on this many test samples, the same in every run. None: on all."""
    augment: tuple[Literal["crop", "flip"], ...] = ()
    """Random crops and horizontal flips of the training images."""
    partition: SerializeAsAny[PartitionConfig] = Field(
        default_factory=lambda: PARTITIONS.section({}, "kind", DEFAULT_PARTITION)
    )
    phases: PhasesConfig | None = None
    """Block-cyclic data; replaces the partition's label split. None: all data in every round."""

    @field_validator("partition", mode="before")
    @classmethod
    def _partition_of_its_kind(cls, value: Any) -> Any:
        return PARTITIONS.section(value, "kind", DEFAULT_PARTITION)

    @field_serializer("partition")
    def _partition_with_kind(self, partition: PartitionConfig) -> dict[str, Any]:
        return PARTITIONS.dump(partition, "kind")

    @field_serializer("source")
    def _source_by_name(self, source: Any) -> str:
        return SOURCES.name_of(source)
