"""The flat model: gradients, buffers and dtype."""

import pytest
import torch
from torch import nn

from raybcgd.model.blocks import divide
from raybcgd.model.flat import FlatModel
from raybcgd.model.settings import BlocksConfig, ModelConfig
from raybcgd.model.zoo import build

CPU = torch.device("cpu")


def _flat(module: nn.Module, **blocks: object) -> FlatModel:
    return FlatModel(module, divide(module, BlocksConfig(**blocks)), torch.float32, CPU)


def test_backward_fills_the_flat_gradient_except_at_buffers() -> None:
    module = build(ModelConfig(name="resnet8", options={"norm": "batch"}), (1, 8, 8), 10, 0)
    flat = _flat(module, division="resnet8")
    x, y = torch.randn(6, 1, 8, 8), torch.arange(6)
    nn.functional.cross_entropy(module(x), y).backward()
    named = flat.named(flat.gradient)
    assert flat.trained is not None
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(named[name], parameter.grad)
        assert bool(parameter.grad.any())
    assert not bool(flat.gradient[flat.trained == 0].any())


def test_batch_norm_statistics_are_in_the_flat_vector_next_to_their_layer() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    flat = _flat(module, count=1)
    assert flat.layout.blocks[0].size == 40 + 8 + 8
    before = flat.vector.clone()
    module(torch.randn(5, 1, 3, 3) + 2)
    changed = flat.named(flat.vector != before)
    assert {name for name, where in changed.items() if bool(where.any())} == {"1.running_mean", "1.running_var"}
    # Evaluation uses the statistics received from the server.
    flat.vector[:] = 0
    flat.named(flat.vector)["1.running_mean"].fill_(7.0)
    assert module[1].running_mean.tolist() == [7.0] * 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parameters_have_the_configured_dtype(dtype: str) -> None:
    module = build(ModelConfig(dtype=dtype), (1, 8, 8), 10, 0)
    assert {parameter.dtype for parameter in module.parameters()} == {getattr(torch, dtype)}
