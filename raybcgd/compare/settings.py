"""`[compare]`: the runs of a comparison."""

from typing import Annotated, Any

from pydantic import Field

from raybcgd.section import Section


class Variant(Section):
    """`[[compare.variants]]`: what one run changes. All runs share data, model and seed."""

    label: str | None = None
    """The name in tables and plots. Default: the method's."""
    rounds: Annotated[int, Field(ge=1)] | None = None
    """Number of rounds. Default: that of the config."""
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
    """Target accuracy. Uploads are counted until a run reaches it."""
    variants: tuple[Variant, ...] = tuple(
        Variant(algorithm={"name": name}) for name in ("fedavg", "fedavgm", "fedbcgd", "fedbcgd+")
    )
    """The runs. Default: FedAvg, FedAvgM, FedBCGD and FedBCGD+."""
