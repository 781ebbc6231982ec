"""The samples of clients on a host's device, and the batches of a round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raybcgd.client.batches import Schedule, schedule
from raybcgd.data.augment import apply, draw
from raybcgd.data.normalise import as_targets, input_dtype, normalise
from raybcgd.messages import RoundOrders
from raybcgd.problem import Data, Problem
from raybcgd.randomness import stream


@dataclass(frozen=True)
class Samples:
    """Normalised samples on the device. Images are stored with their channels last, for fast kernels."""

    stored: Tensor
    targets: Tensor
    images: bool
    """Whether the stored inputs have their channels last."""

    @classmethod
    def of(cls, inputs: Tensor, targets: Tensor) -> "Samples":
        """Make samples from inputs that `normalise` returned, and their targets."""
        images = inputs.ndim == 4 and inputs.shape[1] > 1
        return cls(inputs.permute(0, 2, 3, 1).contiguous() if images else inputs, targets, images)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets at `rows`, which may have several dimensions."""
        flat = rows.reshape(-1)
        inputs = self.stored.index_select(0, flat).reshape(*rows.shape, *self.stored.shape[1:])
        inputs = inputs.movedim(-1, -3) if self.images else inputs
        return inputs, self.targets.index_select(0, flat).reshape(rows.shape)


@dataclass(frozen=True)
class Shard:
    """A client's samples and its batches in a round."""

    samples: Samples
    """May include samples of other clients."""
    rows: np.ndarray
    """The rows of the client's samples."""
    schedule: Schedule
    augmented: Callable[[int], Samples] | None = None
    """Return the client's samples in an epoch, at the same rows. None: all epochs use the same inputs."""


class Shards:
    """Prepares the clients' samples. Without augmentation, they are normalised once if all fit into the budget."""

    def __init__(self, problem: Problem, data: Data, device: torch.device) -> None:
        self._problem, self._data, self._device = problem, data, device
        train, budget = data.dataset.train, problem.config.hosts.data_memory_mb * 2**20
        self._targets = as_targets(train.targets, problem.dtype).to(device)
        self._resident: Samples | None = None
        self._ready: set[tuple[int, int]] = set()
        dtype = input_dtype(data.dataset, problem.dtype)
        fits = train.inputs.size * dtype.itemsize <= budget
        if fits and not problem.config.data.augment:
            shape, images = train.inputs.shape, train.inputs.ndim == 4 and train.inputs.shape[1] > 1
            shape = (shape[0], *shape[2:], shape[1]) if images else shape
            stored = torch.empty(shape, dtype=dtype, device=device)  # a CPU allocates pages only when they are filled
            self._resident = Samples(stored, self._targets, images)

    def shards(self, clients: Sequence[int], orders: RoundOrders) -> list[Shard]:
        """Return the samples and batches of some clients in a round."""
        if self._resident is not None:
            self._normalise(self._resident, clients, orders.data_phase)
        return [self.shard(client, orders) for client in clients]

    def _normalise(self, resident: Samples, clients: Sequence[int], phase: int) -> None:
        """Normalise and store the samples of clients that train for the first time."""
        new = [client for client in clients if (phase, client) not in self._ready]
        if new:
            rows = np.concatenate([self._data.partitions[phase].client(client) for client in new])
            index = torch.from_numpy(rows).to(self._device)
            resident.stored[index] = Samples.of(self._normalised(rows), self._targets[index]).stored
            self._ready.update((phase, client) for client in new)

    def shard(self, client: int, orders: RoundOrders) -> Shard:
        """Return a client's samples and batches in a round."""
        problem, phase = self._problem, orders.data_phase
        rows = self._data.partitions[phase].client(client)
        rng = stream(problem.config.seed, "batches", client, orders.round_index)
        plan = schedule(len(rows), problem.config.local, problem.algorithm.fixed_batches, rng)
        if self._resident is not None:
            return Shard(self._resident, rows, plan)
        targets = self._targets[torch.from_numpy(rows).to(self._device)]
        positions, augment = np.arange(len(rows)), problem.config.data.augment
        if not augment:
            return Shard(Samples.of(self._normalised(rows), targets), positions, plan)
        # Fixed batches are augmented only once: g(x) and g(y) must see the same augmented samples in every epoch.
        passes = len(plan.shuffled)
        rng = stream(problem.config.seed, "augment", client, orders.round_index)
        draws = [draw(rng, len(rows), augment) for _ in range(passes)]
        raw = self._raw(rows)

        def augmented(epoch: int) -> Samples:
            inputs = normalise(apply(raw, draws[epoch]), self._data.dataset, problem.dtype)
            return Samples.of(inputs, targets)

        return Shard(augmented(0), positions, plan, augmented if passes > 1 else None)

    def _raw(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(self._data.dataset.train.inputs[rows]).to(self._device)

    def _normalised(self, rows: np.ndarray) -> Tensor:
        return normalise(self._raw(rows), self._data.dataset, self._problem.dtype)


def gathered(shards: list[Shard]) -> tuple[Samples, list[np.ndarray]]:
    """Return the samples of all shards together, and the rows of each shard in them."""
    first = shards[0].samples
    if all(shard.samples is first for shard in shards):
        return first, [shard.rows for shard in shards]
    stored = torch.cat([shard.samples.stored for shard in shards])
    targets = torch.cat([shard.samples.targets for shard in shards])
    starts = np.cumsum([0, *(len(shard.rows) for shard in shards[:-1])])
    rows = [start + shard.rows for start, shard in zip(starts, shards, strict=True)]
    return Samples(stored, targets, first.images), rows
