"""Torchvision data sets, read from files in their original formats."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raybcgd.data.dataset import Dataset
from raybcgd.data.settings import DataConfig
from raybcgd.data.sources import load
from raybcgd.errors import ConfigError


def write_idx(path: Path, values: np.ndarray) -> None:
    """Write MNIST's format: a magic number with the number of axes, the shape, the bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">I{values.ndim}I", 0x800 + values.ndim, *values.shape) + values.tobytes())


def write_mnist(raw: Path, train_labels: np.ndarray, prefixes: tuple[str, str] = ("train", "t10k")) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (len(train_labels), 28, 28), dtype=np.uint8)
    for prefix in prefixes:
        write_idx(raw / f"{prefix}-images-idx3-ubyte", images)
        write_idx(raw / f"{prefix}-labels-idx1-ubyte", train_labels.astype(np.uint8))
    return images


def read(source: str, root: Path, **settings: Any) -> Dataset:
    return load(DataConfig(source=source, root=str(root), **settings))


@pytest.mark.parametrize(("source", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_files(source: str, folder: str, tmp_path: Path) -> None:
    images = write_mnist(tmp_path / folder / "raw", np.arange(30) % 7)
    data = read(source, tmp_path)
    assert np.array_equal(data.train.inputs, images[:, None])
    assert data.test.targets.tolist() == [i % 7 for i in range(30)]
    assert data.classes == 10
    assert data.scale == 255
    assert np.allclose(data.mean, images.mean() / 255)


def test_the_folder_of_the_data_set_and_the_one_around_it_are_both_accepted(tmp_path: Path) -> None:
    write_mnist(tmp_path / "FashionMNIST/raw", np.arange(30) % 7)
    around, itself = read("fashion_mnist", tmp_path), read("fashion_mnist", tmp_path / "FashionMNIST")
    assert np.array_equal(around.train.inputs, itself.train.inputs)


@pytest.mark.parametrize(("split", "labels", "first", "classes"), [("byclass", 62, 0, 62), ("letters", 26, 1, 26)])
def test_emnist_splits(split: str, labels: int, first: int, classes: int, tmp_path: Path) -> None:
    written = np.arange(labels) + first
    write_mnist(tmp_path / "EMNIST/raw", written, (f"emnist-{split}-train", f"emnist-{split}-test"))
    data = read("emnist", tmp_path, emnist_split=split)
    assert data.train.targets.tolist() == list(range(labels))
    assert data.classes == classes
    convex = read("emnist", tmp_path, emnist_split=split, task="binary")
    assert convex.classes == 2
    assert convex.train.targets.sum() == classes // 2


@pytest.mark.parametrize(
    "settings", [{"image_size": 14}, {"classes": 12}, {"image_column": "image"}, {"label_column": "label"}]
)
def test_settings_of_parquet_files_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST/raw", np.arange(30) % 7)
    (name,) = settings
    with pytest.raises(
        ConfigError, match=rf'^data\.{name} has no effect with the original files of data\.source = "mnist"; remove it'
    ):
        read("mnist", tmp_path, **settings)


def test_missing_files_name_the_settings(tmp_path: Path) -> None:
    for source in ("cifar10", "cifar100", "mnist", "fashion_mnist", "emnist"):
        with pytest.raises(
            ConfigError, match=rf'data\.source = "{source}": .*data\.root .* data\.download = true'
        ) as caught:
            read(source, tmp_path)
        assert "\n" not in str(caught.value)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    raw = tmp_path / "FashionMNIST/raw"
    write_mnist(raw, np.arange(30) % 10)
    images = raw / "t10k-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r'data\.source = "fashion_mnist": cannot read the test files'):
        read("fashion_mnist", tmp_path)


def test_labels_out_of_range_and_missing_labels_are_refused(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST/raw"
    write_mnist(raw, np.arange(30))
    with pytest.raises(ConfigError, match=r"data\.train of 'mnist': labels run from 0 to 29"):
        read("mnist", tmp_path)
    write_mnist(raw, np.arange(30) % 10)
    write_idx(raw / "train-labels-idx1-ubyte", np.zeros(29, dtype=np.uint8))
    with pytest.raises(ConfigError, match=r"data\.train of 'mnist': 30 inputs but targets of shape \(29,\)"):
        read("mnist", tmp_path)
