"""Minibatch gradients: of one client by autograd, or of a stack of clients by vmap."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.utils.rnn import pad_sequence

from raybcgd.client.batches import Schedule
from raybcgd.model.flat import FlatModel

Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class Shard:
    """A client's normalised samples on the device, and its batches."""

    inputs: Tensor
    """The inputs of the first epoch."""
    targets: Tensor
    schedule: Schedule
    augmented: Callable[[int], Tensor] | None = None
    """Return the inputs of a later epoch. None: all epochs use the same inputs."""

    def inputs_of(self, epoch: int) -> Tensor:
        """Return the inputs of an epoch, computed on demand: one copy per epoch might not fit in memory."""
        return self.inputs if self.augmented is None or epoch == 0 else self.augmented(epoch)


class Gradients(Protocol):
    """Minibatch gradients on flat vectors, for one client or a stack of clients with one row each."""

    steps: int
    """Local steps; in a stack, the largest number of any client."""
    batches: int
    """Batches per epoch; in a stack, the largest number of any client."""

    def start(self, x: Tensor) -> Tensor:
        """Return a working copy of x, on which `step` is fastest."""

    def step(self, y: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the gradient and the loss at y on the batch of a step. The caller may overwrite the gradient."""

    def batch(self, y: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        """Return the gradient and the loss at y on a batch of the first epoch. The caller may overwrite both."""

    def loss(self, y: Tensor, batch: int) -> Tensor:
        """Return the loss at y on a batch of the first epoch, without computing a gradient."""

    def fraction(self, batch: int) -> float | Tensor:
        """Return the fraction of the client's samples in a batch of the first epoch."""

    def pick(self, kept: Tensor, step: int) -> Tensor:
        """Return the entry of `kept`, which has one vector per batch, for the batch of a step."""

    def active(self, step: int) -> Tensor | None:
        """Return 1 for clients that have this step and 0 for those that have finished. None if all have it."""


class OneClient:
    """Gradients of one client, which the module's backward pass writes into the flat gradient."""

    def __init__(self, flat: FlatModel, loss: Loss, shard: Shard) -> None:
        flat.reset_integer_buffers()
        self._flat, self._loss, self._shard = flat, loss, shard
        self._order = shard.schedule.order
        self._members = [torch.from_numpy(rows).to(shard.inputs.device) for rows in shard.schedule.members]
        self.steps, self.batches = len(self._order), shard.schedule.per_epoch
        self._epoch, self._inputs = 0, shard.inputs

    def start(self, x: Tensor) -> Tensor:
        return self._flat.vector.copy_(x)

    def step(self, y: Tensor, step: int) -> tuple[Tensor, Tensor]:
        return self.batch(y, self._order[step])

    def batch(self, y: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        vector = self._flat.vector
        if y.data_ptr() == vector.data_ptr():
            return self._backward(batch)
        saved = vector.clone()
        vector.copy_(y)
        gradient, loss = self._backward(batch)
        vector.copy_(saved)
        return gradient, loss

    @torch.no_grad()
    def loss(self, y: Tensor, batch: int) -> Tensor:
        vector = self._flat.vector
        saved = vector.clone()
        vector.copy_(y)
        loss = self._forward(batch)
        vector.copy_(saved)
        return loss

    def _backward(self, batch: int) -> tuple[Tensor, Tensor]:
        self._flat.gradient.zero_()
        loss = self._forward(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return self._flat.gradient, loss.detach()

    def _forward(self, batch: int) -> Tensor:
        rows = self._members[batch]
        epoch = batch // self.batches  # always 0 with fixed batches
        if epoch != self._epoch:
            self._epoch, self._inputs = epoch, self._shard.inputs_of(epoch)
        outputs = self._flat.module(self._inputs.index_select(0, rows))
        return self._loss(outputs, self._shard.targets.index_select(0, rows))

    def fraction(self, batch: int) -> float:
        return len(self._members[batch]) / len(self._shard.targets)

    def pick(self, kept: Tensor, step: int) -> Tensor:
        return kept[self._order[step]]

    def active(self, step: int) -> Tensor | None:
        return None


class ClientStack:
    """Gradients of several clients, one row each.

    Batches are padded to a fixed size, and clients with fewer steps idle at the end, so a client's result does not
    depend on the other clients in the stack.
    """

    def __init__(self, flat: FlatModel, loss: Loss, shards: Sequence[Shard], batch_rows: int) -> None:
        schedules = [shard.schedule for shard in shards]
        self.steps = max(len(schedule.order) for schedule in schedules)
        self.batches = max(schedule.per_epoch for schedule in schedules)
        self._count = len(shards)
        rows = np.zeros((max(len(schedule.members) for schedule in schedules), self._count, batch_rows), dtype=np.int64)
        weights = np.zeros(rows.shape)
        order = np.zeros((self.steps, self._count), dtype=np.int64)
        self._epochs = np.zeros_like(order)
        active = np.zeros((self.steps, self._count, 1))
        fractions = np.zeros((self.batches, self._count, 1))
        for column, schedule in enumerate(schedules):
            for batch, members in enumerate(schedule.members):
                rows[batch, column, : len(members)] = members
                weights[batch, column, : len(members)] = 1.0
            order[: len(schedule.order), column] = schedule.order
            self._epochs[: len(schedule.order), column] = np.array(schedule.order) // schedule.per_epoch
            active[: len(schedule.order), column] = 1.0
            sizes = np.array([len(members) for members in schedule.members[: schedule.per_epoch]])
            fractions[: schedule.per_epoch, column, 0] = sizes / len(shards[column].targets)
        weights[:, :, 0] = 1.0  # padding batches also need a finite loss

        dtype, device = flat.vector.dtype, flat.vector.device
        self._rows, self._order = torch.from_numpy(rows).to(device), torch.from_numpy(order).to(device)
        self._weights = torch.from_numpy(weights).to(device=device, dtype=dtype)
        self._fractions = torch.from_numpy(fractions).to(device=device, dtype=dtype)
        self._active = torch.from_numpy(active).to(device=device, dtype=dtype)
        self._everyone = [bool(row.all()) for row in active]
        self._clients = torch.arange(self._count, device=device)
        equal = len({len(shard.targets) for shard in shards}) == 1
        join = torch.stack if equal else partial(pad_sequence, batch_first=True)  # stacking is faster
        self._inputs, self._targets = join([s.inputs for s in shards]), join([s.targets for s in shards])
        self._shards, self._shown = shards, np.zeros(self._count, dtype=np.int64)

        def one(vector: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
            outputs = functional_call(flat.module, flat.named(vector), (inputs,))
            return (loss(outputs, targets, reduction="none") * weights).sum() / weights.sum()

        self._gradient_and_loss, self._only_loss = vmap(grad_and_value(one)), vmap(one)

    def start(self, x: Tensor) -> Tensor:
        return x.expand(self._count, -1).clone()

    def step(self, y: Tensor, step: int) -> tuple[Tensor, Tensor]:
        batches = self._order[step]
        self._switch_epochs(self._epochs[step])
        return self._at(y, self._rows[batches, self._clients], self._weights[batches, self._clients])

    def batch(self, y: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        self._switch_epochs(np.zeros_like(self._shown))
        return self._at(y, self._rows[batch], self._weights[batch])

    @torch.no_grad()
    def loss(self, y: Tensor, batch: int) -> Tensor:
        self._switch_epochs(np.zeros_like(self._shown))
        rows, clients = self._rows[batch], self._clients[:, None]
        inputs, targets = self._inputs[clients, rows], self._targets[clients, rows]
        loss: Tensor = self._only_loss(y.expand(self._count, -1), inputs, targets, self._weights[batch])
        return loss

    def _switch_epochs(self, epochs: np.ndarray) -> None:
        """Switch each client's inputs to its current epoch. Clients may be in different epochs."""
        for column in np.flatnonzero(epochs != self._shown):
            shard = self._shards[int(column)]
            if shard.augmented is not None:
                self._inputs[column, : len(shard.targets)] = shard.inputs_of(int(epochs[column]))
        self._shown = epochs

    def _at(self, y: Tensor, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        clients = self._clients[:, None]
        y = y.expand(self._count, -1)
        gradient, loss = self._gradient_and_loss(y, self._inputs[clients, rows], self._targets[clients, rows], weights)
        return gradient, loss

    def fraction(self, batch: int) -> Tensor:
        return self._fractions[batch]

    def pick(self, kept: Tensor, step: int) -> Tensor:
        return kept[self._order[step], self._clients]

    def active(self, step: int) -> Tensor | None:
        return None if self._everyone[step] else self._active[step]
