"""`[compare]`: the runs of a comparison."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from raybcgd.section import Section


class Variant(Section):
    """`[[compare.variants]]`: the settings that one run changes. All runs share data set, model and seed."""

    label: str | None = None
    """Name in tables and plots. Default: the method's title, which is the start of its docstring, such as FedAvg in
    "FedAvg (McMahan et al., 2017): ...", or the `name` of its class if there is no colon. If several variants have the
    same title, the settings in which they differ follow."""
    rounds: Annotated[int, Field(ge=1)] | None = None
    """Number of rounds. Default: `rounds` of the config."""
    algorithm: dict[str, Any] = Field(default_factory=dict)
    """Changes to `[algorithm]`. If `name` changes, settings that the new method does not have are dropped."""
    blocks: dict[str, Any] = Field(default_factory=dict)
    """Changes to `[blocks]`."""
    cohort: dict[str, Any] = Field(default_factory=dict)
    """Changes to `[cohort]`."""
    local: dict[str, Any] = Field(default_factory=dict)
    """Changes to `[local]`."""
    wire: dict[str, Any] = Field(default_factory=dict)
    """Changes to `[wire]`."""
    partition: dict[str, Any] = Field(default_factory=dict)
    """Changes to `[data.partition]`."""
    phases: dict[str, Any] = Field(default_factory=dict)
    """Changes to `[data.phases]`."""


class CompareConfig(Section):
    """`[compare]`: the runs of `raybcgd compare`."""

    target: Annotated[float, Field(gt=0, le=1)] | None = None
    """Target accuracy. The comparison reports how much each run uploads to reach it. Default: `metrics.target`."""
    variants: tuple[Variant, ...] = tuple(
        Variant(algorithm={"name": name}) for name in ("fedavg", "fedavgm", "fedbcgd", "fedbcgd+")
    )
    """The runs. Default: FedAvg, FedAvgM, FedBCGD and FedBCGD+."""
    seeds: tuple[int, ...] | None = None
    """Run every variant with each of these seeds, and report means over them. Default: `seed` of the config."""

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if seeds is not None and len(set(seeds)) < max(1, len(seeds)):
            raise ValueError("must be a list of one or more different seeds")
        return seeds
