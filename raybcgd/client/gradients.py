"""Minibatch gradients: of one client with autograd, or of a stack of clients with vmap."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from raybcgd.client.batches import stacked
from raybcgd.client.shards import Shard, gathered
from raybcgd.client.softmax_regression import SoftmaxRegression, is_softmax_regression
from raybcgd.model.flat import FlatModel
from raybcgd.model.outputs import logits_of

Loss = Callable[..., Tensor]

_RECORD_AFTER = 100
"""Number of gradients of the same shape after which their operations are recorded. For a small model, recording takes
as long as about 90 gradients, and halves the time of later ones."""


def autocast(device: torch.device, bf16: bool) -> AbstractContextManager[Any]:
    """Return the context of a forward pass: bfloat16 where torch's autocast allows it, or no change."""
    return torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext()


def _widened(outputs: Tensor, bf16: bool) -> Tensor:
    """Return a model's outputs in float32, for the loss."""
    return outputs.float() if bf16 else outputs


class Gradients(Protocol):
    """Minibatch gradients on flat vectors, for one client or a stack of clients with one row each."""

    steps: int
    """Local steps; in a stack, the largest number of any client."""
    batches: int
    """Batches per epoch; in a stack, the largest number of any client."""
    repeatable: bool
    """Whether the gradient at the same point on the same batch always has the same bits."""

    def start(self, x: Tensor) -> Tensor:
        """Return a working copy of x, for which `step` is fastest."""

    def step(self, y: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the gradient and the loss at y on the batch of a step. The caller may overwrite the gradient."""

    def batch(self, y: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        """Return the gradient and the loss at y on a batch of the first epoch. The caller may overwrite both."""

    def loss(self, y: Tensor, batch: int) -> Tensor:
        """Return the loss at y on a batch of the first epoch, without computing a gradient."""

    def fraction(self, batch: int) -> float | Tensor:
        """Return the fraction of the client's samples in a batch of the first epoch."""

    def pick(self, kept: Tensor, step: int) -> Tensor:
        """Return the vector for the batch of a step from `kept`, which has one vector per batch."""

    def active(self, step: int) -> Tensor | None:
        """Return 1 for clients that run this step and 0 for those that have finished. None if all run it."""


class OneClient:
    """Gradients of one client, which the module's backward pass writes into the flat gradient."""

    repeatable = False  # the module may draw random numbers or change its buffers

    def __init__(
        self,
        flat: FlatModel,
        loss: Loss,
        shard: Shard,
        bf16: bool = False,
        forward: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Prepare the batches of a round. `forward`, such as a compiled one, replaces the module's forward pass."""
        flat.reset_integer_buffers()
        self._flat, self._loss, self._shard, self._bf16 = flat, loss, shard, bf16
        self._module = forward or flat.module
        plan = shard.schedule
        self._order = plan.order.tolist()
        members = plan.members()
        rows = torch.from_numpy(shard.rows[np.concatenate(members)]).to(flat.vector.device)
        self._members = torch.split(rows, [len(batch) for batch in members])
        self.steps, self.batches = len(self._order), plan.per_epoch
        self._epoch, self._samples = 0, shard.samples

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
        epoch = batch // self.batches  # always 0 with fixed batches
        if epoch != self._epoch and self._shard.augmented is not None:
            self._epoch, self._samples = epoch, self._shard.augmented(epoch)
        inputs, targets = self._samples.take(self._members[batch])
        with autocast(inputs.device, self._bf16):
            outputs = logits_of(self._module(inputs))
        return self._loss(_widened(outputs, self._bf16), targets)

    def fraction(self, batch: int) -> float:
        return len(self._members[batch]) / self._shard.schedule.samples

    def pick(self, kept: Tensor, step: int) -> Tensor:
        return kept[self._order[step]]

    def active(self, step: int) -> Tensor | None:
        return None


class StackGradient(Protocol):
    """The gradients and losses of a stack of clients, one row each, on one batch per client.

    `weights` has 1 for each sample and 0 for padding.
    """

    def __call__(self, y: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return one gradient and one loss per client."""

    def losses(self, y: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return one loss per client, without computing gradients."""


def stack_gradient(flat: FlatModel, loss: Loss, bf16: bool = False, backend: str | None = None) -> StackGradient:
    """Return the fastest gradients for a model and a loss."""
    if not bf16 and backend is None and is_softmax_regression(flat, loss):
        return SoftmaxRegression(flat)
    return VmapGradient(flat, loss, bf16, backend)


class VmapGradient:
    """The gradients and losses of a stack of clients for any model, with vmap. See `StackGradient`.

    After some calls with the same shapes, the tensor operations are recorded. Later calls replay them, which is faster
    than vmap and gives the same bits. With a backend of torch.compile, the first call records and compiles them:
    compiled kernels can give different bits, so all calls must use them.
    """

    def __init__(self, flat: FlatModel, loss: Loss, bf16: bool = False, backend: str | None = None) -> None:
        def one(vector: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
            with autocast(inputs.device, bf16):
                outputs = logits_of(functional_call(flat.module, flat.named(vector), (inputs,)))
            return (loss(_widened(outputs, bf16), targets, reduction="none") * weights).sum() / weights.sum()

        self._vmapped, self._losses, self._backend = vmap(grad_and_value(one)), vmap(one), backend
        self._calls: Counter[tuple[int, ...]] = Counter()
        self._recorded: dict[tuple[int, ...], Callable[..., Any]] = {}

    def __call__(self, y: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        shape = tuple(weights.shape)
        if shape not in self._recorded:
            self._calls[shape] += 1
            if self._backend is not None or self._calls[shape] == _RECORD_AFTER:
                self._recorded[shape] = self._record(y, inputs, targets, weights)
        compute: Callable[..., tuple[Tensor, Tensor]] = self._recorded.get(shape, self._vmapped)
        return compute(y, inputs, targets, weights)

    def losses(self, y: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        losses: Tensor = self._losses(y, inputs, targets, weights)
        return losses

    def _record(self, *arguments: Tensor) -> Callable[..., Any]:
        if self._backend is not None:
            compiled: Callable[..., Any] = torch.compile(
                make_fx(self._vmapped)(*arguments), backend=self._backend, dynamic=False
            )
            return compiled
        try:
            recorded: Callable[..., Any] = make_fx(self._vmapped)(*arguments)
        except Exception:  # recording is experimental in torch, and only saves time
            return self._vmapped
        return recorded


class ClientStack:
    """Gradients of several clients, one row each.

    Batches are padded to a fixed size, and clients with fewer steps idle at the end, so a client's result does not
    depend on the other clients in the stack.
    """

    repeatable = True

    def __init__(self, flat: FlatModel, gradient: StackGradient, shards: list[Shard], batch_rows: int) -> None:
        self._gradient, self._shards, self._count = gradient, shards, len(shards)
        self._samples, self._rows = gathered(shards)
        plan = stacked([shard.schedule for shard in shards], self._rows, batch_rows)
        self.steps, self.batches = len(plan.step_rows), len(plan.batch_rows)
        dtype, device = flat.vector.dtype, flat.vector.device
        kept_rows = plan.batch_of_step * self._count + np.arange(self._count)
        self._step_rows, self._batch_rows, self._kept_rows = (
            torch.from_numpy(array).to(device) for array in (plan.step_rows, plan.batch_rows, kept_rows)
        )
        self._step_weights, self._batch_weights, self._fractions, self._active = (
            torch.from_numpy(array).to(device=device, dtype=dtype)
            for array in (plan.step_weights, plan.batch_weights, plan.fractions, plan.active)
        )
        self._everyone = [bool(row.all()) for row in plan.active]
        self._epochs, self._shown = plan.step_epochs, np.zeros(self._count, dtype=np.int64)
        self._augments = any(shard.augmented is not None for shard in shards)
        first = zip(plan.batch_of_step[: self.batches], range(self.batches), strict=False)
        self._in_order = [bool((row == batch).all()) for row, batch in first] + [False] * self.steps
        """For each step, whether all clients use the batch with the same number as the step, as in the first epoch."""
        self._held: dict[int, tuple[Tensor, Tensor]] = {}
        """Inputs and targets of batches, kept from their gradient at x until the first step that uses them again."""

    def start(self, x: Tensor) -> Tensor:
        return x.expand(self._count, -1).clone()

    def step(self, y: Tensor, step: int) -> tuple[Tensor, Tensor]:
        self._switch_epochs(self._epochs[step])
        held = self._held.pop(step, None) if self._in_order[step] else None
        inputs, targets = self._samples.take(self._step_rows[step]) if held is None else held
        return self._gradient(y.expand(self._count, -1), inputs, targets, self._step_weights[step])

    def batch(self, y: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        self._switch_epochs(np.zeros_like(self._shown))
        inputs, targets = self._samples.take(self._batch_rows[batch])
        if batch:  # not for batch 0: the first step reuses its gradient
            self._held[batch] = inputs, targets
        return self._gradient(y.expand(self._count, -1), inputs, targets, self._batch_weights[batch])

    @torch.no_grad()
    def loss(self, y: Tensor, batch: int) -> Tensor:
        self._switch_epochs(np.zeros_like(self._shown))
        inputs, targets = self._samples.take(self._batch_rows[batch])
        return self._gradient.losses(y.expand(self._count, -1), inputs, targets, self._batch_weights[batch])

    def _switch_epochs(self, epochs: np.ndarray) -> None:
        """Switch each client's inputs to its current epoch. Clients may be in different epochs."""
        if not self._augments:
            return
        for k in np.flatnonzero(epochs != self._shown).tolist():
            shard, place = self._shards[k], slice(int(self._rows[k][0]), int(self._rows[k][-1]) + 1)
            samples = shard.samples if shard.augmented is None else shard.augmented(int(epochs[k]))
            self._samples.stored[place] = samples.stored
        self._shown = epochs

    def fraction(self, batch: int) -> Tensor:
        return self._fractions[batch]

    def pick(self, kept: Tensor, step: int) -> Tensor:
        return kept[step] if self._in_order[step] else kept.flatten(0, 1).index_select(0, self._kept_rows[step])

    def active(self, step: int) -> Tensor | None:
        return None if self._everyone[step] else self._active[step]
