"""The local training loop, compared with explicit formulas for a quadratic loss."""

import pytest
import torch
from torch import Tensor

from raybcgd.algorithms.api import Task
from raybcgd.client.training import LocalWork

LR = 0.1
CENTRES = torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 5.0]], dtype=torch.float64)
"""Batch b has the loss |y - CENTRES[b]|^2 / 2, so its gradient at y is y - CENTRES[b]."""
FRACTIONS = (0.75, 0.25)
ORDER = (0, 1, 0, 1, 1)


class Quadratic:
    """Gradients of the quadratic loss. Counts the gradients that it computes."""

    steps, batches = len(ORDER), len(CENTRES)

    def __init__(self, repeatable: bool = False) -> None:
        self.computed, self.repeatable = 0, repeatable

    def start(self, x: Tensor) -> Tensor:
        return x.clone()

    def step(self, y: Tensor, step: int) -> tuple[Tensor, Tensor]:
        return self.batch(y, ORDER[step])

    def batch(self, y: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        self.computed += 1
        g = y - CENTRES[batch]
        return g, (g @ g) / 2

    def loss(self, y: Tensor, batch: int) -> Tensor:
        g = y - CENTRES[batch]
        return (g @ g) / 2

    def fraction(self, batch: int) -> float:
        return FRACTIONS[batch]

    def pick(self, kept: Tensor, step: int) -> Tensor:
        return kept[ORDER[step]]

    def active(self, step: int) -> Tensor | None:
        return None


def work(
    gradients: Quadratic | None = None,
    *,
    weight_decay: float = 0.0,
    trained: Tensor | None = None,
    anchor_bytes: int = 1 << 20,
) -> LocalWork:
    return LocalWork(
        gradients or Quadratic(),
        Task(len(ORDER), LR, trained, slice(2, 3)),
        weight_decay=weight_decay,
        own=lambda: torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64),
        shared=lambda: torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64),
        data_phase=0,
        anchor_bytes=anchor_bytes,
    )


X = torch.tensor([4.0, -2.0, 1.0], dtype=torch.float64)
FULL = 0.75 * (X - CENTRES[0]) + 0.25 * (X - CENTRES[1])


def test_sgd_steps_along_the_batch_gradients() -> None:
    y = X
    for batch in ORDER:
        y = y - LR * (y - CENTRES[batch])
    torch.testing.assert_close(work().sgd(X), y)


def test_x_is_not_changed() -> None:
    x = X.clone()
    work().sgd(x, variance_reduced=True)
    assert torch.equal(x, X)


def test_weight_decay_is_part_of_the_gradient() -> None:
    seen: list[Tensor] = []
    work(weight_decay=0.5).sgd(X, lambda g, y: (seen.append(g.clone()), g)[1])
    torch.testing.assert_close(seen[0], X - CENTRES[0] + 0.5 * X)


def test_a_direction_replaces_the_gradient() -> None:
    y = X
    for batch in ORDER:
        y = y - LR * (2 * (y - CENTRES[batch]) + 3 * (y - X))
    torch.testing.assert_close(work().sgd(X, lambda g, y: 2 * g + 3 * (y - X)), y)


@pytest.mark.parametrize("momentum", [0.9, torch.tensor([0.9, 0.0, 0.5], dtype=torch.float64)])
def test_momentum_accumulates_per_coordinate(momentum: float | Tensor) -> None:
    y, velocity = X, torch.zeros_like(X)
    for batch in ORDER:
        velocity = momentum * velocity + (y - CENTRES[batch])
        y = y - LR * velocity
    torch.testing.assert_close(work().sgd(X, momentum=momentum), y)


@pytest.mark.parametrize("anchor_bytes", [1 << 20, 0])
def test_variance_reduction_corrects_every_step(anchor_bytes: int) -> None:
    y = X
    for batch in ORDER:
        y = y - LR * ((y - CENTRES[batch]) - (X - CENTRES[batch]) + FULL)
    torch.testing.assert_close(work(anchor_bytes=anchor_bytes).sgd(X, variance_reduced=True), y)


def test_gradients_at_x_are_computed_once_if_they_fit_in_the_cache() -> None:
    cached, recomputed = Quadratic(), Quadratic()
    a = work(cached).sgd(X, variance_reduced=True)
    b = work(recomputed, anchor_bytes=0).sgd(X, variance_reduced=True)
    assert torch.equal(a, b)
    assert cached.computed == len(CENTRES) + len(ORDER)
    assert recomputed.computed == len(CENTRES) + 2 * len(ORDER)


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_the_first_step_reuses_the_gradient_at_x_if_it_is_repeatable(weight_decay: float) -> None:
    reused, computed = Quadratic(repeatable=True), Quadratic()
    local, other = work(reused, weight_decay=weight_decay), work(computed, weight_decay=weight_decay)
    shift = torch.full_like(X, 0.25)
    first = local.sgd(X, shift=shift, variance_reduced=True)
    assert torch.equal(first, other.sgd(X, shift=shift, variance_reduced=True))
    assert torch.equal(local.training_loss(), other.training_loss())
    assert reused.computed == computed.computed - 1
    local.sgd(X)  # the gradient was used once, and overwritten
    assert torch.equal(local.sgd(X), other.sgd(X))


def test_the_full_gradient_weights_batches_by_their_samples() -> None:
    torch.testing.assert_close(work().full_gradient(X), FULL)


def test_buffers_do_not_move_and_have_no_gradient() -> None:
    trained = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    local = work(trained=trained)
    delta = local.sgd(X) - X
    assert delta[1] == 0
    assert local.full_gradient(X)[1] == 0
    assert local.mean_gradient(torch.ones_like(X))[1] == 0


def test_the_mean_gradient_is_the_mean_direction_of_the_local_steps() -> None:
    local = work()
    directions: list[Tensor] = []
    delta = local.sgd(X, lambda g, _: (directions.append(g.clone()), g)[1]) - X
    torch.testing.assert_close(local.mean_gradient(delta), torch.stack(directions).mean(0))


def test_the_loss_is_the_mean_over_the_samples_at_x() -> None:
    losses = [((X - centre) @ (X - centre)) / 2 for centre in CENTRES]
    gradients = Quadratic()
    torch.testing.assert_close(work(gradients).loss(X).reshape(()), 0.75 * losses[0] + 0.25 * losses[1])
    assert gradients.computed == 0, "a loss needs no gradient"


def test_the_training_loss_is_the_mean_over_the_steps() -> None:
    local = work()
    assert bool(local.training_loss().isnan())
    y, losses = X, []
    for batch in ORDER:
        g = y - CENTRES[batch]
        losses.append((g @ g) / 2)
        y = y - LR * g
    local.sgd(X)
    torch.testing.assert_close(local.training_loss(), torch.stack(losses).mean())
