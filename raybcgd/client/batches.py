"""The batches of a client in a round: a function of the client's size and a random stream."""

from dataclasses import dataclass

import numpy as np

from raybcgd.client.settings import LocalConfig


@dataclass(frozen=True)
class Schedule:
    """A client's batches: step t uses batch b = `order[t]`, whose samples have the positions `members[b]` in the shard.

    The first `per_epoch` batches are one pass over the shard.
    """

    members: tuple[np.ndarray, ...]
    order: tuple[int, ...]
    per_epoch: int


def schedule(samples: int, config: LocalConfig, fixed: bool, rng: np.random.Generator) -> Schedule:
    """Draw the batches of a client in a round.

    Every epoch shuffles the samples. With `fixed`, the batches are drawn once and every epoch shuffles their order, so
    that a batch's gradient at x can be reused in all epochs.
    """
    steps, per_epoch = config.num_steps(samples), config.num_batches(samples)
    epochs = -(-steps // per_epoch)
    size = samples if config.batch_size == "full" else config.batch_size
    members: list[np.ndarray] = []
    order: list[int] = []
    for epoch in range(epochs):
        if epoch == 0 or not fixed:
            shuffled = rng.permutation(samples)
            order.extend(range(len(members), len(members) + per_epoch))
            members.extend(shuffled[start : start + size] for start in range(0, samples, size))
        else:
            order.extend(rng.permutation(per_epoch).tolist())
    return Schedule(tuple(members), tuple(order[:steps]), per_epoch)
