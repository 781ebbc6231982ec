"""Block divisions: sizes, norm layers, empty blocks, and errors that name the setting."""

import pytest
import torch
from torch import nn

from raybcgd.errors import ConfigError
from raybcgd.model.blocks import divide
from raybcgd.model.layers import layers_of
from raybcgd.model.settings import BlocksConfig, ModelConfig
from raybcgd.model.zoo import build


def test_the_default_mlp_has_the_block_sizes_in_the_readme() -> None:
    layout = divide(build(ModelConfig(), (1, 8, 8), 10, 0), BlocksConfig(division="layers", count=5, shared="last"))
    assert [block.size for block in layout.all_blocks] == [4160] * 5 + [650]


def test_balanced_blocks_minimise_the_sum_of_squared_sizes() -> None:
    widths = [1, 8, 2, 9, 3, 3, 7, 1]
    module = nn.Sequential(*(nn.Linear(width, 1, bias=False) for width in widths))
    layout = divide(module, BlocksConfig(division="balanced", count=3, shared="none"))
    best = min(
        sum(part) ** 2 + sum(middle) ** 2 + sum(rest) ** 2
        for i in range(1, 7)
        for j in range(i + 1, 8)
        for part, middle, rest in [(widths[:i], widths[i:j], widths[j:])]
    )
    assert sum(block.size**2 for block in layout.blocks) == best


def test_a_norm_layer_is_merged_into_the_layer_before_it_unless_named() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    assert [layer.name for layer in layers_of(module)] == ["0", "2"]
    layout = divide(module, BlocksConfig(division="equal", count=2, shared=("1", "2")))
    assert layout.shared.layers == ("1", "2")
    assert layout.shared.size == 8 + 10
    assert layout.size == 16 + 8 + 10


def test_a_client_with_an_empty_block_uploads_only_the_shared_block() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    layout = divide(module, BlocksConfig(groups=(("0",), ()), shared="last"))
    assert [block.size for block in layout.blocks] == [16, 0]
    assert layout.own(1) == (layout.shared.slice,)
    assert layout.own(0) == (layout.blocks[0].slice, layout.shared.slice)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (BlocksConfig(count=7), "blocks.count = 7"),
        (BlocksConfig(division="nope"), 'blocks.division = "nope"'),
        (BlocksConfig(division="equal", count=10**9), "blocks.count"),
        (BlocksConfig(shared=5), 'needs blocks.division = "equal"'),
        (BlocksConfig(shared=("nope",)), 'blocks.shared names "nope"'),
        (BlocksConfig(groups=(("nope",),)), 'blocks.groups names "nope"'),
        (BlocksConfig(groups=(("1", "1"),)), "names a layer twice"),
        (BlocksConfig(groups=(("1",),)), "blocks.groups leaves out"),
        (BlocksConfig(division="balanced", groups=(("1",),)), "blocks.groups needs"),
        (BlocksConfig(division="vgg11"), 'blocks.division = "vgg11" is for the model vgg11'),
    ],
)
def test_an_invalid_division_gives_a_one_line_error_that_names_the_setting(config: BlocksConfig, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        divide(build(ModelConfig(), (1, 8, 8), 10, 0), config)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_models_that_cannot_be_divided_give_the_reason() -> None:
    with pytest.raises(ConfigError, match=r'set blocks\.shared = "none"'):
        divide(nn.Linear(2, 2), BlocksConfig(shared="last"))
    with pytest.raises(
        ConfigError, match=r"blocks\.count = 2 is more than the 1 layer to divide; lower blocks\.count to 1"
    ):
        divide(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), BlocksConfig(count=2, shared="last"))
    with pytest.raises(ConfigError, match="no trainable parameters"):
        divide(nn.ReLU(), BlocksConfig())
    with pytest.raises(ConfigError, match="no trainable parameters"):
        divide(nn.Linear(2, 2).requires_grad_(False), BlocksConfig())
    assert torch.is_grad_enabled()
