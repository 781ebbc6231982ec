"""Which samples a client sees in which step: a function of the client's size and a random stream."""

from dataclasses import dataclass

import numpy as np

from raybcgd.client.settings import LocalConfig


@dataclass(frozen=True)
class Schedule:
    """A client's round: `order[t]` is the batch of step t, `members[b]` the positions of batch b in the shard.

    The first `per_epoch` batches are one whole pass over the shard.
    """

    members: tuple[np.ndarray, ...]
    order: tuple[int, ...]
    per_epoch: int


def schedule(samples: int, config: LocalConfig, fixed: bool, rng: np.random.Generator) -> Schedule:
    """The batches of a client's round.

    Every pass shuffles the samples anew; with `fixed` the membership of the batches is drawn once and every pass
    shuffles the batches, so that a batch's gradient at x can serve every pass.
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
