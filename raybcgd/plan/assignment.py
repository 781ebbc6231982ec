"""The assignment of blocks to the clients of a cohort."""

from collections.abc import Callable, Sequence

import numpy as np

from raybcgd.data.partition import Floats, sizes_from_weights

Assignment = Callable[[Sequence[int], int, np.random.Generator], Sequence[int]]
"""(clients in the order in which they were drawn, N, random draws) -> the block of each."""


def evenly(clients: Sequence[int], blocks: int, rng: np.random.Generator) -> Sequence[int]:
    """Assign the same number of clients to each block, at random: the clients are in random order.

    If the clients do not divide evenly, draw the blocks that get one more.
    """
    each, extra = divmod(len(clients), blocks)
    more = rng.permutation(blocks)[:extra].tolist() if extra else []
    return [*range(blocks)] * each + more


def by_bandwidth(rates: Floats, sizes: Sequence[int]) -> Assignment:
    """Assign the same number of clients to each block, and the smallest blocks to the slowest clients.

    No other even assignment makes the slowest upload of the round faster.
    """

    def assign(clients: Sequence[int], blocks: int, rng: np.random.Generator) -> Sequence[int]:
        groups = np.array(sorted(evenly(clients, blocks, rng), key=lambda block: sizes[block]))
        chosen = np.empty(len(clients), dtype=np.int64)
        chosen[np.argsort(rates[np.asarray(clients)], kind="stable")] = groups
        return chosen.tolist()

    return assign


def by_need(need: Floats) -> Assignment:
    """Assign one client to each block, and the others in proportion to the blocks' needs.

    The mean over K clients has 1/K of their variance, so the total error is smallest if a block's number of clients is
    proportional to its standard deviation, estimated by recent movement. If no block has moved yet, assign evenly.
    """

    def assign(clients: Sequence[int], blocks: int, rng: np.random.Generator) -> Sequence[int]:
        if not need.sum() > 0:
            return evenly(clients, blocks, rng)
        return np.repeat(np.arange(blocks), sizes_from_weights(need, len(clients))).tolist()

    return assign
