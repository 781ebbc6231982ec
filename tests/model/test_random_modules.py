"""Properties of random modules: nested, with norm layers, buffers, frozen and tied parameters."""

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from raybcgd.model.blocks import BlockLayout, divide
from raybcgd.model.flat import FlatModel
from raybcgd.model.layers import layers_of
from raybcgd.model.settings import BlocksConfig


class Tied(nn.Module):
    """Two linear layers that share a weight, plus a parameter and buffers of the module itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(width))
        self.register_buffer("offset", torch.randn(width))
        self.register_buffer("count", torch.tensor(3))
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width, bias=False)
        self.second.weight = self.first.weight


def _frozen(width: int) -> nn.Module:
    layer = nn.Linear(width, width)
    layer.weight.requires_grad_(False)
    return layer


_LAYERS = {
    "linear": lambda width: nn.Linear(width, width + 1),
    "convolution": lambda width: nn.Conv2d(width, 2, (3, 2)),
    "batch": nn.BatchNorm2d,
    "group": lambda width: nn.GroupNorm(1, width),
    "layer": nn.LayerNorm,
    "attention": lambda width: nn.MultiheadAttention(width, 1),
    "recurrent": lambda width: nn.GRU(width, width),
    "tied": Tied,
    "frozen": _frozen,
    "relu": lambda width: nn.ReLU(),
}
_leaf = st.tuples(st.sampled_from(sorted(_LAYERS)), st.integers(1, 5))
_tree = st.recursive(_leaf, lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=10)


def _make(tree: object) -> nn.Module:
    if isinstance(tree, tuple):
        kind, width = tree
        return _LAYERS[kind](width)
    assert isinstance(tree, list)
    return nn.Sequential(*(_make(part) for part in tree))


def _modules() -> st.SearchStrategy[nn.Module]:
    """Modules with at least two trainable layers, of which the first and the last are linear."""
    return _tree.map(lambda tree: nn.Sequential(nn.Linear(2, 3), _make(tree), nn.Linear(3, 2)))


def _check(layout: BlockLayout, module: nn.Module) -> None:
    owners = np.zeros(layout.size, dtype=int)
    for block in (*layout.blocks, layout.shared):
        owners[block.slice] += 1
    assert (owners == 1).all()
    assert layout.shared.stop == layout.size
    entries = [entry for layer in layout.order for entry in layer.entries]
    trained = {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}
    buffers = {name: tensor for name, tensor in module.named_buffers() if tensor.is_floating_point()}
    assert {entry.name for entry in entries} == {*trained, *buffers}
    assert len(entries) == len(trained) + len(buffers)
    assert layout.size == sum(tensor.numel() for tensor in (*trained.values(), *buffers.values()))


@settings(max_examples=60, deadline=None)
@given(
    module=_modules(),
    division=st.sampled_from(["layers", "balanced", "equal"]),
    shared=st.sampled_from(["last", "none", "all", "0", 3]),
    count=st.integers(1, 6),
)
def test_every_coordinate_is_in_exactly_one_block(
    module: nn.Module, division: str, shared: str | int, count: int
) -> None:
    if shared == "0":
        shared_names: object = ("0",)
    elif isinstance(shared, int) and division != "equal":
        shared_names = "none"
    else:
        shared_names = shared
    free = len(layers_of(module)) - (shared_names not in ("none", "all"))
    count = min(count, free)
    layout = divide(module, BlocksConfig(division=division, shared=shared_names, count=count))
    assert len(layout.blocks) == count
    _check(layout, module)
    if shared_names != "all":
        assert all(block.size for block in layout.blocks)


@settings(max_examples=30, deadline=None)
@given(module=_modules(), data=st.data())
def test_explicit_groups_cover_every_coordinate_and_may_be_empty(module: nn.Module, data: st.DataObject) -> None:
    names = [layer.name for layer in layers_of(module)][:-1]
    chosen = [data.draw(st.integers(0, 3)) for _ in names]
    groups = tuple(tuple(n for n, group in zip(names, chosen, strict=True) if group == k) for k in range(4))
    _check(divide(module, BlocksConfig(groups=groups, shared="last")), module)


def _flat(module: nn.Module, **blocks: Any) -> FlatModel:
    return FlatModel(module, divide(module, BlocksConfig(**blocks)), torch.float32, torch.device("cpu"))


def _flatten(flat: FlatModel, state: dict[str, Tensor]) -> Tensor:
    vector = torch.empty_like(flat.vector)
    for name, view in flat.named(vector).items():
        view.copy_(state[name])
    return vector


@settings(max_examples=50, deadline=None)
@given(module=_modules(), division=st.sampled_from(["layers", "balanced", "equal"]))
def test_state_dict_round_trip_is_exact(module: nn.Module, division: str) -> None:
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    flat = _flat(module, division=division, count=1)
    after = module.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert torch.equal(_flatten(flat, before), flat.vector)
    other = torch.randn(flat.vector.shape)
    assert torch.equal(_flatten(flat, flat.named(other)), other)
    assert torch.equal(_flatten(flat, flat.named(other)), other)
    flat.vector.copy_(other)
    assert torch.equal(_flatten(flat, module.state_dict()), other)


@settings(max_examples=30, deadline=None)
@given(module=_modules())
def test_parameters_and_gradients_are_views_of_the_flat_vectors(module: nn.Module) -> None:
    flat = _flat(module, shared="none", count=1)
    inside = flat.vector.untyped_storage().data_ptr()
    for parameter in module.parameters():
        if parameter.requires_grad:
            assert parameter.untyped_storage().data_ptr() == inside
            assert parameter.grad is not None
            assert parameter.grad.untyped_storage().data_ptr() == flat.gradient.untyped_storage().data_ptr()
    flat.vector.zero_()
    assert all(not bool(parameter.any()) for parameter in module.parameters() if parameter.requires_grad)
