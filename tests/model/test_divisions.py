"""The papers' divisions: the counts in their tables, and the division table itself."""

import pytest
import torch
from torch import nn

from raybcgd.errors import ConfigError
from raybcgd.model.blocks import divide
from raybcgd.model.division_table import division_table, upload_saving
from raybcgd.model.divisions import DIVISIONS
from raybcgd.model.flat import FlatModel
from raybcgd.model.settings import BlocksConfig, ModelConfig
from raybcgd.model.zoo import build


def _model(name: str, classes: int = 10, **options: object) -> nn.Module:
    return build(ModelConfig(name=name, options=options), (3, 32, 32), classes, seed=0)


def _weights(model: nn.Module, division: str, **blocks: object) -> list[int]:
    layout = divide(model, BlocksConfig(division=division, **blocks))
    return [row.weights for row in division_table(layout, torch.float32)]


def _layer_weights(model: nn.Module) -> dict[str, int]:
    return {name.removesuffix(".weight"): p.numel() for name, p in model.named_parameters() if p.dim() > 1}


def test_lenet5_counts() -> None:
    assert _weights(_model("lenet5"), "lenet5") == [4_800, 102_400, 614_400, 73_728, 1_920]


def test_the_authors_lenet5_division_has_an_empty_fifth_block() -> None:
    model = _model("lenet5")
    layout = divide(model, BlocksConfig(division="lenet5-paper"))
    assert len(layout.blocks) == 5
    assert layout.blocks[4].size == 0
    assert layout.own(4) == (layout.shared.slice,)
    assert FlatModel(model, layout, torch.float32, torch.device("cpu")).vector.numel() == layout.size
    assert _weights(_model("lenet5"), "lenet5-paper", shared="none") == [4_800, 102_400, 614_400, 73_728, 1_920]


def test_vgg19_counts() -> None:
    model = _model("vgg19", classes=100)
    layers = _layer_weights(model)
    linear = [layers[f"classifier.fc{k}"] for k in (1, 2, 3)]
    assert linear == [1_048_576, 131_072, 25_600]
    convolutions = [layers[f"features.conv{k}"] for k in range(1, 17)]
    assert _weights(model, "vgg19") == [
        sum(convolutions[:8]),
        sum(convolutions[8:10]),
        sum(convolutions[10:12]),
        sum(convolutions[12:14]),
        sum(convolutions[14:]) + linear[0] + linear[1],
        linear[2],
    ]


def test_vgg11_counts() -> None:
    model = _model("vgg11", classes=100)
    assert _layer_weights(model)["classifier.fc3"] == 102_400
    assert _weights(model, "vgg11")[4:] == [2048 * 1024 + 1024 * 1024, 102_400]


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_resnet18_counts(norm: str) -> None:
    counts = _weights(_model("resnet18", norm=norm), "resnet18")
    assert len(counts) == 6
    assert counts[-1] == 5_120
    assert counts[3] == 256 * 512 * 9 + 512 * 512 * 9 + 256 * 512
    assert counts[4] == 2 * 512 * 512 * 9


def test_resnet8_has_three_stages_and_a_head() -> None:
    counts = _weights(_model("resnet8"), "resnet8")
    assert counts[-1] == 640
    assert counts[0] == 3 * 16 * 9 + 2 * 16 * 16 * 9
    assert len(counts) == 4


def test_vit_base_has_six_equal_cuts() -> None:
    model = _model("vit_b_16", classes=200)
    layout = divide(model, BlocksConfig(division="vit_b_16"))
    assert [block.size for block in layout.blocks] == [14_299_520] * 6
    assert layout.shared.layers == ("encoder.ln", "heads.head")
    assert division_table(layout, "float32")[-1].weights == 153_600
    layout = divide(model, BlocksConfig(division="vit_b_16", shared="none"))
    assert layout.shared.size == 0
    assert len(layout.blocks) == 6


@pytest.mark.parametrize(
    ("model", "division"),
    [("vgg11", "vgg19"), ("vgg19", "vgg11"), ("resnet8", "resnet18"), ("resnet18", "resnet8"), ("vgg11", "vit_b_16")],
)
def test_a_division_for_another_model_is_rejected(model: str, division: str) -> None:
    with pytest.raises(ConfigError, match=f'blocks.division = "{division}" is for the model {division}'):
        divide(_model(model), BlocksConfig(division=division))


def test_a_named_division_accepts_only_none_or_all_as_shared() -> None:
    model = _model("lenet5")
    assert _weights(model, "lenet5", shared="none") == [4_800, 102_400, 614_400, 73_728 + 1_920]
    layout = divide(model, BlocksConfig(division="lenet5", shared="all"))
    assert [block.size for block in layout.blocks] == [0] * 4
    assert layout.shared.size == layout.size
    for wrong in ({"shared": ("conv1",)}, {"shared": 5}, {"groups": (("conv1",),)}):
        with pytest.raises(ConfigError, match="has its own groups"):
            divide(model, BlocksConfig(division="lenet5", **wrong))


def test_every_division_names_its_layers_once() -> None:
    for division in DIVISIONS.values():
        assert len(set(division.names)) == len(division.names)


def test_the_rows_of_the_division_table_add_up() -> None:
    layout = divide(_model("resnet8", norm="batch"), BlocksConfig(division="resnet8"))
    rows = division_table(layout, "float64")
    assert [row.block for row in rows] == ["0", "1", "2", "shared"]
    entries = [entry for layer in layout.order for entry in layer.entries]
    assert sum(row.parameters for row in rows) == sum(entry.size for entry in entries if entry.trained) < layout.size
    assert sum(row.bytes for row in rows) == 8 * layout.size
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert rows[0].layers == ("conv1 + bn1", "layer1.conv1 + layer1.bn1", "layer1.conv2 + layer1.bn2")
    cuts = divide(_model("resnet8"), BlocksConfig(division="equal", count=7, shared=100))
    assert sum(row.weights for row in division_table(cuts, "float32")) == sum(
        _layer_weights(_model("resnet8")).values()
    )


def test_the_upload_saving_counts_blocks_and_frozen_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Linear(5, 4, bias=False), nn.Linear(4, 1, bias=False))
    model[0].requires_grad_(False)
    saving = upload_saving(model, divide(model, BlocksConfig(count=1)), torch.float32)
    assert (saving.frozen, saving.upload_bytes, saving.whole_model_bytes) == (20, 4 * 24, 4 * 44)
