"""The clients of a round and their blocks."""

from collections.abc import Sequence
from typing import NamedTuple

from raybcgd.plan.assignment import Assignment, evenly
from raybcgd.randomness import stream


class Member(NamedTuple):
    """A client of a round and the block that it uploads; None for methods without blocks."""

    client: int
    block: int | None


def draw_cohort(
    seed: int, round_index: int, clients: int, size: int, blocks: int | None, assignment: Assignment = evenly
) -> tuple[Member, ...]:
    """Draw `size` clients without replacement and assign each a block. Return them sorted by client."""
    rng = stream(seed, "cohort", round_index)
    chosen = rng.choice(clients, size=size, replace=False).tolist()
    groups: Sequence[int | None] = [None] * size if blocks is None else assignment(chosen, blocks, rng)
    return tuple(sorted(Member(client, group) for client, group in zip(chosen, groups, strict=True)))
