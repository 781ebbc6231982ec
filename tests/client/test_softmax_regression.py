"""The closed-form gradient of softmax regression, compared with vmap."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from raybcgd.client.gradients import VmapGradient
from raybcgd.client.host import one_thread
from raybcgd.client.softmax_regression import SoftmaxRegression, is_softmax_regression
from raybcgd.model.blocks import divide
from raybcgd.model.dense import linear, mlp
from raybcgd.model.flat import FlatModel
from raybcgd.model.losses import cross_entropy, mse
from raybcgd.model.settings import BlocksConfig

CLIENTS, CLASSES, SHAPE = 50, 10, (1, 12, 12)


def flat_model(module: nn.Module, dtype: torch.dtype = torch.float32) -> FlatModel:
    return FlatModel(module, divide(module, BlocksConfig(count=1), 10), dtype, torch.device("cpu"))


def batch(
    flat: FlatModel, dtype: torch.dtype = torch.float32, samples: int = 20
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return models, inputs, targets and weights. For every other client, a quarter of the samples are padding."""
    torch.manual_seed(0)
    weights = torch.ones(CLIENTS, samples, dtype=dtype)
    weights[::2, samples - samples // 4 :] = 0
    models = 0.3 * torch.randn(CLIENTS, len(flat.vector), dtype=dtype)
    inputs = torch.randn(CLIENTS, samples, *SHAPE, dtype=dtype)
    return models, inputs, torch.randint(CLASSES, (CLIENTS, samples)), weights


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_and_losses_are_those_of_autograd(bias: bool) -> None:
    flat = flat_model(linear(SHAPE, CLASSES, bias=bias), torch.float64)
    stack = batch(flat, torch.float64)
    assert is_softmax_regression(flat, cross_entropy)
    closed, by_vmap = SoftmaxRegression(flat), VmapGradient(flat, cross_entropy)
    before = stack[0].clone()
    for found, expected in zip(closed(*stack), by_vmap(*stack), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(closed.losses(*stack), by_vmap.losses(*stack), rtol=1e-12, atol=1e-14)
    assert torch.equal(stack[0], before)


@pytest.mark.parametrize("samples", [1, 7, 20])
@one_thread()
def test_a_clients_bits_do_not_depend_on_the_size_of_the_stack(samples: int) -> None:
    flat = flat_model(linear(SHAPE, CLASSES))
    closed, stack = SoftmaxRegression(flat), batch(flat, samples=samples)
    gradients, losses = closed(*stack)
    for size in (1, 2, 3, 7, 25):
        for start in (0, CLIENTS - size):
            part = slice(start, start + size)
            some = closed(*(value[part] for value in stack))
            assert torch.equal(some[0], gradients[part])
            assert torch.equal(some[1], losses[part])
            assert torch.equal(closed.losses(*(value[part] for value in stack)), losses[part])


def hooked() -> nn.Module:
    module = linear(SHAPE, CLASSES)
    module.register_forward_hook(lambda *_: None)
    return module


def frozen() -> nn.Module:
    module = linear(SHAPE, CLASSES)
    module[1].bias.requires_grad_(False)  # type: ignore[index,union-attr]
    return module


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (lambda: linear(SHAPE, CLASSES), mse),
        (lambda: linear(SHAPE, CLASSES), nn.functional.cross_entropy),
        (lambda: mlp(SHAPE, CLASSES, hidden=(8,)), cross_entropy),
        (lambda: nn.Sequential(nn.Flatten(2), nn.Linear(144, CLASSES)), cross_entropy),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, CLASSES), nn.ReLU()), cross_entropy),
        (hooked, cross_entropy),
        (frozen, cross_entropy),
    ],
    ids=["loss", "own loss", "layers", "flatten", "activation", "hook", "frozen"],
)
def test_other_models_and_losses_use_vmap(make: Callable[[], nn.Module], loss: Callable[..., Tensor]) -> None:
    assert not is_softmax_regression(flat_model(make()), loss)
