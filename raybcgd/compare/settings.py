"""`[compare]`: the runs of a comparison."""

from typing import Annotated, Any

from pydantic import Field

from raybcgd.section import Section


class Variant(Section):
    """`[[compare.variants]]`: the settings that one run changes. All runs share data, model and seed."""

    label: str | None = None
    """Name in tables and plots. Default: the method's name."""
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


class CompareConfig(Section):
    """`[compare]`: the runs of `raybcgd compare`."""

    target: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Target accuracy. The comparison reports how much each run uploads to reach it."""
    variants: tuple[Variant, ...] = tuple(
        Variant(algorithm={"name": name}) for name in ("fedavg", "fedavgm", "fedbcgd", "fedbcgd+")
    )
    """The runs. Default: FedAvg, FedAvgM, FedBCGD and FedBCGD+."""
