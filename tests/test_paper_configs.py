"""The configs in jobs/configs: every file loads, and its runs are valid on data of the right shape."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from raybcgd import Config, run
from raybcgd.compare.comparison import variant_configs
from raybcgd.config import load_config
from raybcgd.data.dataset import Dataset
from raybcgd.data.sources import binary, load
from raybcgd.model.blocks import divide
from raybcgd.model.zoo import build
from raybcgd.problem import partition_data, prepare
from raybcgd.wire.upload import Wire

FOLDER = Path(__file__).parent.parent / "jobs" / "configs"
FILES = sorted(FOLDER.rglob("*.toml"))
NAMES = [str(path.relative_to(FOLDER)) for path in FILES]
SMALL = [name for name in NAMES if name.endswith("small.toml") and "cifar" not in name]
LARGE = ("vgg11", "vgg11-fedpvr", "vgg19", "resnet18", "vit_b_16")
SHAPES = {
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "tiny_imagenet": ((3, 64, 64), 200),
    "emnist": ((1, 28, 28), 62),
    "fashion_mnist": ((1, 28, 28), 10),
}


@cache
def blank(source: str) -> Dataset:
    """Return black images with the shape and the labels of a data set."""
    shape, classes = SHAPES[source]
    train, test = np.zeros((8000, *shape), dtype=np.uint8), np.zeros((1000, *shape), dtype=np.uint8)
    return Dataset.from_tensors(train, np.arange(8000) % classes, test, np.arange(1000) % classes, name=source)


def data_of(config: Config) -> Dataset:
    if config.data.source not in SHAPES:
        return load(config.data)
    dataset = blank(config.data.source)
    return binary(dataset, config.data.positive) if config.data.task == "binary" else dataset


@pytest.mark.parametrize("name", NAMES)
def test_every_run_of_a_config_is_valid(name: str) -> None:
    config = load_config(FOLDER / name)
    dataset, clients = data_of(config), config.data.partition.clients
    variants = list(variant_configs(config).values())
    module = (
        on_meta_device(config, dataset)
        if config.model.name in LARGE
        else prepare(variants[-1], None, dataset)[0].module()
    )
    split = None
    for variant in variants:
        if variant.data != split:
            split, phases = variant.data, variant.data.phases
            parts = partition_data(variant, dataset).partitions
            assert len(parts) == (1 if phases is None else phases.count)
            assert all(part.sizes.min() > 0 for part in parts)
        layout = divide(module, variant.blocks)
        assert layout.size == sum(block.size for block in layout.all_blocks)
        assert 1 <= variant.cohort.size(len(layout.blocks), clients) <= clients
        wire = Wire(variant.algorithm, layout, variant.wire, torch.float32)
        assert 0 < wire.upload(0 if variant.algorithm.blockwise else None).bytes <= 8 * layout.size + 100


def on_meta_device(config: Config, dataset: Dataset) -> nn.Module:
    """Build a large model without allocating its parameters, and check its output shape."""
    options = {key: value for key, value in config.model.options.items() if key != "weights"}
    model, shape = config.model.model_copy(update={"options": options}), dataset.train.inputs.shape[1:]
    with torch.device("meta"):
        module = build(model, shape, dataset.classes, config.seed)
        assert module(torch.zeros(2, *shape)).shape == (2, dataset.classes)
    return module


@pytest.mark.parametrize("name", SMALL)
def test_a_small_config_runs(name: str, out: Path) -> None:
    """Run one round of the first variant. A full run takes minutes."""
    config = next(iter(variant_configs(load_config(FOLDER / name)).values()))
    record = run(config.model_copy(update={"rounds": 1, "engine": "local"}), out=out).records[-1]
    assert record.quality.accuracy is not None
    assert record.traffic.upload_floats > 0


def test_the_readme_lists_every_config() -> None:
    text = (FOLDER / "README.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in text] == []
