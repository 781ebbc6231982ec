"""`[compare]`: the runs of a comparison."""

from typing import Annotated, Any

from pydantic import Field

from raybcgd.section import Section


class Variant(Section):
    """`[[compare.variants]]`: what is different in one run of a comparison. Data, model and seed never are."""

    label: str | None = None
    """Its name in tables and plots; the method's unless given."""
    rounds: Annotated[int, Field(ge=1)] | None = None
    """Rounds of this run; those of the config unless given."""
    algorithm: dict[str, Any] = Field(default_factory=dict)
    """Settings that replace those of `[algorithm]`; with another `name`, the others carry over where it has them."""
    blocks: dict[str, Any] = Field(default_factory=dict)
    """Settings that replace those of `[blocks]`."""
    cohort: dict[str, Any] = Field(default_factory=dict)
    """Settings that replace those of `[cohort]`."""
    local: dict[str, Any] = Field(default_factory=dict)
    """Settings that replace those of `[local]`."""
    wire: dict[str, Any] = Field(default_factory=dict)
    """Settings that replace those of `[wire]`."""


class CompareConfig(Section):
    """`[compare]`: what `raybcgd compare` runs, and the accuracy at which it counts."""

    target: Annotated[float, Field(gt=0, le=1)] = 0.9
    """The accuracy to which uploads are counted."""
    variants: tuple[Variant, ...] = tuple(
        Variant(algorithm={"name": name}) for name in ("fedavg", "fedavgm", "fedbcgd", "fedbcgd+")
    )
