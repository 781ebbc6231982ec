"""The batches of a client in a round. They depend only on its number of samples, `[local]` and a random stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from raybcgd.client.settings import LocalConfig


@dataclass(frozen=True)
class Schedule:
    """A client's batches: step t uses batch `order[t]`, and the first `per_epoch` batches are one pass over its data.

    Each row of `shuffled` is one pass: the positions of all samples, or only of those in full batches, in order. A
    batch is `size` consecutive entries of a row; the last batch of a pass may be smaller.
    """

    shuffled: np.ndarray
    order: np.ndarray
    per_epoch: int
    size: int

    @property
    def samples(self) -> int:
        """Number of samples per pass."""
        return int(self.shuffled.shape[1])

    def members(self) -> list[np.ndarray]:
        """Return the positions of the samples of every batch."""
        starts = range(0, self.samples, self.size)
        return [row[start : start + self.size] for row in self.shuffled for start in starts]


def schedule(samples: int, config: LocalConfig, fixed: bool, rng: np.random.Generator) -> Schedule:
    """Draw the batches of a client in a round.

    Every epoch shuffles the samples. With `fixed`, the batches are drawn once and every epoch shuffles their order, so
    that a batch's gradient at x can be reused in all epochs.
    """
    steps, per_epoch = config.num_steps(samples), config.num_batches(samples)
    epochs = -(-steps // per_epoch)
    size = samples if config.batch_size == "full" else min(config.batch_size, samples)
    used = per_epoch * size if config.drop_last else samples
    if fixed:
        shuffled = rng.permutation(samples)[None, :used]
        order = np.concatenate([np.arange(per_epoch), *(rng.permutation(per_epoch) for _ in range(epochs - 1))])
    else:
        shuffled = np.empty((epochs, used), dtype=np.int64)
        for row in shuffled:
            row[:] = rng.permutation(samples)[:used]
        order = np.arange(epochs * per_epoch)
    return Schedule(shuffled, order[:steps], per_epoch, size)


class StackedBatches(NamedTuple):
    """The batches of a stack of clients, padded to the same number of steps, of batches, and of rows per batch.

    Padding repeats a sample of the same client with weight 0, so a client's result does not depend on the others.
    """

    step_rows: np.ndarray
    """The samples of each step: [steps, clients, rows]."""
    step_weights: np.ndarray
    """1 for samples, 0 for padding."""
    step_epochs: np.ndarray
    """The epoch of each step, always 0 with fixed batches: [steps, clients]."""
    batch_of_step: np.ndarray
    """The batch of each step, numbered within its epoch: [steps, clients]."""
    batch_rows: np.ndarray
    """The samples of each batch of the first epoch: [batches, clients, rows]."""
    batch_weights: np.ndarray
    fractions: np.ndarray
    """The fraction of the client's samples in each batch of the first epoch: [batches, clients, 1]."""
    active: np.ndarray
    """1 up to a client's last step, 0 after it: [steps, clients, 1]."""


def stacked(schedules: Sequence[Schedule], positions: Sequence[np.ndarray], rows: int) -> StackedBatches:
    """Stack the batches of several clients. `positions` are the rows of their samples in a common array."""
    count, batches = len(schedules), max(s.per_epoch for s in schedules)
    steps, passes = max(len(s.order) for s in schedules), max(len(s.shuffled) for s in schedules)
    lengths, per_epoch, samples = np.array([(len(s.order), s.per_epoch, s.samples) for s in schedules]).T
    same_shape = len({(len(s.order), s.shuffled.shape) for s in schedules}) == 1
    if same_shape and batches * rows == samples[0]:  # the common case of equal clients: nothing to pad
        shuffled = np.stack([s.shuffled for s in schedules])
        table = np.stack(positions)[np.arange(count)[:, None, None], shuffled]
        order = np.stack([s.order for s in schedules])
    else:
        table = np.empty((count, passes, batches * rows), dtype=np.int64)
        order = np.zeros((count, steps), dtype=np.int64)
        for k, (s, rows_of) in enumerate(zip(schedules, positions, strict=True)):
            table[k] = rows_of[0]
            table[k, : len(s.shuffled), : s.samples] = rows_of[s.shuffled]
            order[k, : len(s.order)] = s.order
    by_batch = table.reshape(count, passes, batches, rows)
    epochs, batch = np.divmod(order, per_epoch[:, None])
    clients, row_numbers = np.arange(count)[:, None], np.arange(rows)
    sizes = np.clip(samples[:, None] - np.arange(batches) * rows, 0, rows)
    batch_weights = row_numbers < np.maximum(sizes, 1)[:, :, None]  # padding batches also need a finite loss
    return StackedBatches(
        step_rows=by_batch[clients, epochs, batch].swapaxes(0, 1),
        step_weights=batch_weights[clients, batch].swapaxes(0, 1),
        step_epochs=epochs.T,
        batch_of_step=batch.T,
        batch_rows=by_batch[:, 0].swapaxes(0, 1),
        batch_weights=batch_weights.swapaxes(0, 1),
        fractions=(sizes / samples[:, None]).T[:, :, None],
        active=(np.arange(steps)[:, None] < lengths)[:, :, None],
    )
