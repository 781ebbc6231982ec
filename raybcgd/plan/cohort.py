"""Who takes part in a round and which block each uploads: a function of the seed and the round."""

from collections.abc import Sequence
from typing import NamedTuple

from raybcgd.plan.assignment import Assignment, evenly
from raybcgd.randomness import stream


class Member(NamedTuple):
    """A client of a round and the block it uploads; None where the method has no blocks."""

    client: int
    block: int | None


def draw_cohort(
    seed: int, round_index: int, clients: int, size: int, blocks: int | None, assignment: Assignment = evenly
) -> tuple[Member, ...]:
    """`size` clients without replacement, dealt into `blocks` groups; in the order of their numbers."""
    rng = stream(seed, "cohort", round_index)
    chosen = [int(client) for client in rng.choice(clients, size=size, replace=False)]
    groups: Sequence[int | None]
    if blocks is None:
        groups = [None] * size
    elif size < blocks:
        groups = rng.permutation(blocks)[:size].tolist()
    else:
        groups = assignment(chosen, blocks)
    return tuple(sorted(Member(client, group) for client, group in zip(chosen, groups, strict=True)))
