"""The config of an experiment as one frozen object. Each table's class is in the `settings.py` of its package."""

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, SerializeAsAny, ValidationError, field_serializer, field_validator, model_validator

from raybcgd.algorithms.settings import ALGORITHMS, DEFAULT_ALGORITHM, AlgorithmConfig
from raybcgd.analysis.settings import AnalysisConfig
from raybcgd.client.settings import LocalConfig
from raybcgd.compare.settings import CompareConfig
from raybcgd.config.explain import explain, section_of, takes_text
from raybcgd.config.objects import ObjectsConfig
from raybcgd.data.settings import DataConfig
from raybcgd.engine.settings import HostsConfig
from raybcgd.errors import ConfigError
from raybcgd.model.settings import BlocksConfig, ModelConfig
from raybcgd.plan.settings import CohortConfig
from raybcgd.record.settings import CheckpointConfig, MetricsConfig
from raybcgd.report.settings import TrackConfig
from raybcgd.section import Section
from raybcgd.server.settings import BudgetConfig, EvaluationConfig
from raybcgd.storage import FORMAT_VERSION
from raybcgd.wire.settings import CODECS, DEFAULT_CODEC, CodecConfig


def _non_finite(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in nested tables and lists that are not finite, with their paths."""
    if isinstance(value, float) and not math.isfinite(value):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _non_finite(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _non_finite(item, f"{path}[{number}]")


_MISREAD = re.compile(r"0+-\d+")
"""What pydantic reads as a negative integer, although it looks like a range."""


def _ranges(values: dict[Any, Any], section: type[Section], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield texts such as "0-3" that are values of numbers in nested tables, with their paths."""
    for key, value in values.items():
        where = f"{path}.{key}" if path else str(key)
        if isinstance(value, dict):
            inner = section_of(section, str(key))
            yield from () if inner is None else _ranges(value, inner, where)
        elif not takes_text(section, str(key)):
            items = value if isinstance(value, (list, tuple)) else [value]
            yield from ((where, item) for item in items if isinstance(item, str) and _MISREAD.fullmatch(item.strip()))


class Config(Section):
    """The config of an experiment."""

    version: int = FORMAT_VERSION
    """The version of the config format. Leave it out; run folders record it."""
    seed: int = 0
    """Seed of all random draws. A draw depends only on the seed and on what it is for."""
    rounds: Annotated[int, Field(ge=1)] = 60
    """R, the number of rounds. `[budget]` can end a run earlier."""
    engine: Literal["ray", "local"] = "ray"
    """ray: client hosts are Ray actors. local: everything runs in this process. Both give the same weights."""
    data: DataConfig = Field(default_factory=DataConfig)
    model: ModelConfig = ModelConfig()
    blocks: BlocksConfig = BlocksConfig()
    algorithm: SerializeAsAny[AlgorithmConfig] = Field(
        default_factory=lambda: ALGORITHMS.section({}, DEFAULT_ALGORITHM)
    )
    local: LocalConfig = LocalConfig()
    cohort: CohortConfig = CohortConfig()
    wire: SerializeAsAny[CodecConfig] = Field(default_factory=lambda: CODECS.section({}, DEFAULT_CODEC))
    budget: BudgetConfig = BudgetConfig()
    hosts: HostsConfig = HostsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    metrics: MetricsConfig = MetricsConfig()
    track: TrackConfig = TrackConfig()
    analysis: AnalysisConfig | None = None
    """What to analyse at the end of a run. None: nothing."""
    compare: CompareConfig | None = None
    """The runs of `raybcgd compare`. A single run ignores it."""
    objects: ObjectsConfig | None = None
    """The Python objects that were passed to `run`. Leave it out; run folders record it."""

    def __init__(self, **values: Any) -> None:
        """Validate the settings. An error is one line that names the setting."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explain(error, Config)) from None

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for key, text in _ranges(values, cls):
                raise ConfigError(f"{key} = {text!r}: must be a number, or a list of numbers")
            # TOML has nan and inf, but no setting takes them. Tables of options have no schema that refuses them.
            for key, value in _non_finite(values):
                raise ConfigError(f"{key} = {value}: must be a finite number")
        return values

    @field_validator("version")
    @classmethod
    def _known_version(cls, value: int) -> int:
        if value != FORMAT_VERSION:
            raise ConfigError(f"version = {value}: must be {FORMAT_VERSION}; use the version of raybcgd that wrote it")
        return value

    @field_validator("algorithm", mode="before")
    @classmethod
    def _algorithm_by_name(cls, value: Any) -> Any:
        return ALGORITHMS.section(value, DEFAULT_ALGORITHM)

    @field_validator("wire", mode="before")
    @classmethod
    def _codec_by_name(cls, value: Any) -> Any:
        return CODECS.section(value, DEFAULT_CODEC)

    @field_serializer("algorithm")
    def _algorithm_with_name(self, algorithm: AlgorithmConfig) -> dict[str, Any]:
        return ALGORITHMS.dump(algorithm)

    @field_serializer("wire")
    def _codec_with_name(self, codec: CodecConfig) -> dict[str, Any]:
        return CODECS.dump(codec)

    def with_compare_target(self) -> "Config":
        """Return the config with `compare.target`, if that is set, as the run's own target."""
        if self.compare is None or self.compare.target is None:
            return self
        metrics = self.metrics.model_copy(update={"target": self.compare.target})
        return self.model_copy(update={"metrics": metrics})

    def to_toml(self) -> str:
        """Return the config as TOML, which loads back to the same config."""
        tables = self.model_dump(mode="json", exclude_none=True)
        if not self.data.partition_is_set:  # in a file, it would replace the data's own clients
            del tables["data"]["partition"]
        return tomli_w.dumps(tables)
