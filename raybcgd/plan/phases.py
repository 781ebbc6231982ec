"""Which phase of block-cyclic data is on in a round."""

from raybcgd.data.phases import PhasesConfig


def phase_at(config: PhasesConfig | None, round_index: int) -> int:
    """The phase of a round: cycle after cycle, `count` phases of `rounds_per_phase` rounds each."""
    return 0 if config is None else round_index // config.rounds_per_phase % config.count
