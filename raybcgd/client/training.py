"""The local training loop: SGD on flat vectors, in the direction that a client rule chooses."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from raybcgd.algorithms.api import Direction, Task
from raybcgd.client.gradients import Gradients


class LocalWork:
    """Local training of one client, or of a stack of clients: the `Work` of a client rule."""

    def __init__(
        self,
        gradients: Gradients,
        task: Task,
        *,
        weight_decay: float,
        own: Callable[[], Tensor],
        shared: Callable[[], Tensor],
        data_phase: int,
        anchor_bytes: int,
    ) -> None:
        self.lr, self.data_phase = task.lr, data_phase
        self.mean_gradient = task.mean_gradient
        self._gradients, self.trained = gradients, task.trained
        self._own, self._shared = own, shared
        self._weight_decay, self._anchor_bytes = weight_decay, anchor_bytes
        self._anchor: tuple[Tensor, _Anchor] | None = None
        self._losses: list[Tensor] = []
        self._active: list[Tensor | None] = []

    @cached_property
    def own(self) -> Tensor:
        """1 on the client's block and the shared block, 0 elsewhere."""
        return self._own()

    @cached_property
    def shared(self) -> Tensor:
        """1 on the shared block, 0 elsewhere."""
        return self._shared()

    def sgd(
        self,
        x: Tensor,
        direction: Direction | None = None,
        *,
        shift: Tensor | None = None,
        momentum: float | Tensor = 0.0,
        variance_reduced: bool = False,
    ) -> Tensor:
        """Return y_T after the round's local steps y <- y - eta direction(g, y), starting at y = x."""
        corrections = self._anchor_at(x).corrections(shift) if variance_reduced else None
        with_momentum = isinstance(momentum, Tensor) or momentum > 0
        velocity: Tensor | None = None
        losses, active = [], []
        first = self._anchor[1].take_first() if self._anchor is not None and self._anchor[0] is x else None
        y = self._gradients.start(x)
        for step in range(self._gradients.steps):
            if step == 0 and first is not None:
                g, loss = first
            else:
                g, loss = self._gradients.step(y, step)
                g = _decayed(g, y, self._weight_decay)
            losses.append(loss)
            active.append(self._gradients.active(step))
            if corrections is not None:
                g = corrections.correct(g, step)
            elif shift is not None:
                g.add_(shift)
            move = g if direction is None else direction(g, y)
            if with_momentum:
                velocity = move.clone() if velocity is None else velocity.mul_(momentum).add_(move)
                move = velocity
            for mask in (active[-1], self.trained):
                move = move if mask is None else move * mask
            y.sub_(move, alpha=self.lr)
        self._losses, self._active = losses, active
        return y.clone()

    def full_gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of the client's loss at x over the samples of a pass, with weight decay.

        Zero on buffers. With `local.drop_last`, only samples in full batches count.
        """
        full = self._anchor_at(x).full
        return full if self.trained is None else full * self.trained

    def loss(self, x: Tensor) -> Tensor:
        """Return the client's mean loss at x."""
        parts = [
            self._gradients.loss(x, batch)[..., None] * self._gradients.fraction(batch)
            for batch in range(self._gradients.batches)
        ]
        return torch.stack(parts).sum(0)

    def training_loss(self) -> Tensor:
        """Return the mean loss over the steps of the last call to `sgd`, without those in which a client is idle."""
        if not self._losses:
            return torch.tensor(float("nan"))
        # Add one step at a time: the bits must not depend on how many idle steps follow.
        total = steps = torch.zeros_like(self._losses[0])
        for loss, active in zip(self._losses, self._active, strict=True):
            counted = None if active is None else active.reshape(loss.shape)
            total = total + (loss if counted is None else loss * counted)
            steps = steps + (1 if counted is None else counted)
        return total / steps

    def _anchor_at(self, x: Tensor) -> "_Anchor":
        if self._anchor is None or self._anchor[0] is not x:
            self._anchor = (x, _Anchor(self._gradients, x, self._weight_decay, self._anchor_bytes))
        return self._anchor[1]


class _Anchor:
    """Gradients at x: the full gradient G, and those of all batches, cached if they fit into `cache_bytes`."""

    def __init__(self, gradients: Gradients, x: Tensor, weight_decay: float, cache_bytes: int) -> None:
        self._gradients, self._x, self._weight_decay = gradients, x, weight_decay
        y = gradients.start(x)
        self._cached: Tensor | None = None
        if gradients.batches * y.numel() * y.element_size() <= cache_bytes:
            self._cached = y.new_empty((gradients.batches, *y.shape))
        self.full = torch.zeros_like(y)
        self._first: tuple[Tensor, Tensor] | None = None
        for batch in range(gradients.batches):
            g, loss = gradients.batch(y, batch)
            g = _decayed(g, x, weight_decay)
            if batch == 0 and gradients.repeatable:
                self._first = g.clone(), loss
            if self._cached is not None:
                self._cached[batch] = g
            self.full.add_(g.mul_(gradients.fraction(batch)))

    def take_first(self) -> tuple[Tensor, Tensor] | None:
        """Return the gradient and the loss of batch 0 at x, which are those of the first step, if they are repeatable.

        A second call returns None, because the caller may overwrite the gradient.
        """
        first, self._first = self._first, None
        return first

    def corrections(self, shift: Tensor | None) -> "_Corrections":
        """Return the corrections G + shift - g(x; batch). They overwrite the cached gradients."""
        constant = self.full if shift is None else self.full + shift
        cached, self._cached = self._cached, None
        if cached is not None:
            torch.sub(constant, cached, out=cached)
        return _Corrections(self._gradients, self._x, self._weight_decay, constant, cached)


@dataclass(frozen=True)
class _Corrections:
    """The variance-reduction terms of all batches."""

    gradients: Gradients
    x: Tensor
    weight_decay: float
    constant: Tensor
    """G + shift."""
    cached: Tensor | None
    """G + shift - g(x; batch) for all batches. None: each step computes its own."""

    def correct(self, g: Tensor, step: int) -> Tensor:
        """Return g(y; batch) + (G + shift - g(x; batch)) for the batch of a step. May overwrite g."""
        if self.cached is not None:
            return g.add_(self.gradients.pick(self.cached, step))
        g = g.clone()  # the next gradient overwrites this one
        at_x = _decayed(self.gradients.step(self.x, step)[0], self.x, self.weight_decay)
        return g.add_(self.constant - at_x)


def _decayed(g: Tensor, y: Tensor, weight_decay: float) -> Tensor:
    """Add the gradient of the weight decay at y to g, in place."""
    return g.add_(y, alpha=weight_decay) if weight_decay else g
