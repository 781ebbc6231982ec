"""Which block each client of a cohort uploads."""

from collections.abc import Callable, Sequence

import numpy as np

from raybcgd.data.partition import Floats, sizes_from_weights

Assignment = Callable[[Sequence[int], int], Sequence[int]]
"""(the clients in the order in which they were drawn, N) -> the block of each."""


def evenly(clients: Sequence[int], blocks: int) -> Sequence[int]:
    """To every block as many clients, at random: the clients come in random order."""
    return [k % blocks for k in range(len(clients))]


def by_bandwidth(rates: Floats, sizes: Sequence[int]) -> Assignment:
    """To every block as many clients, the slowest ones to the smallest blocks.

    No other assignment of the same numbers makes the slowest upload of the round faster.
    """

    def assign(clients: Sequence[int], blocks: int) -> Sequence[int]:
        groups = np.array(sorted(evenly(clients, blocks), key=lambda block: sizes[block]))
        chosen = np.empty(len(clients), dtype=np.int64)
        chosen[np.argsort(rates[np.asarray(clients)], kind="stable")] = groups
        return [int(block) for block in chosen]

    return assign


def by_need(need: Floats) -> Assignment:
    """To every block one client, and further ones in proportion to its need; evenly while nothing is known of needs.

    With K clients a block's mean has a variance of 1/K of theirs, so that numbers in proportion to the blocks'
    deviations, for which recent movement stands, make the least error in all.
    """

    def assign(clients: Sequence[int], blocks: int) -> Sequence[int]:
        if not need.sum() > 0:
            return evenly(clients, blocks)
        counts = sizes_from_weights(need, len(clients))
        return [int(block) for block in np.repeat(np.arange(blocks), counts)]

    return assign
