"""Torchvision data sets, read from local files or downloaded."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raybcgd.data.dataset import Array, Dataset, Labels, Split, channel_statistics
from raybcgd.errors import ConfigError, first_line
from raybcgd.torchvision_ops import import_torchvision


class Known(NamedTuple):
    """A torchvision class and its number of labels. For EMNIST, see EMNIST_CLASSES."""

    type_name: str
    classes: int


KNOWN = {
    "cifar10": Known("CIFAR10", 10),
    "cifar100": Known("CIFAR100", 100),
    "mnist": Known("MNIST", 10),
    "fashion_mnist": Known("FashionMNIST", 10),
    "emnist": Known("EMNIST", 62),
}

EMNIST_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


def load_torchvision(name: str, root: Path, download: bool, emnist_split: str = "byclass") -> Dataset:
    """Load the train and test splits of a data set in KNOWN as bytes (n, channels, height, width)."""
    classes = EMNIST_CLASSES[emnist_split] if name == "emnist" else KNOWN[name].classes
    train, test = (_split(name, root, is_train, download, emnist_split) for is_train in (True, False))
    if len(train) == 0:
        raise ConfigError(f"data.root: the {name} train files in {root} are empty; fetch them again")
    mean, std = channel_statistics(train.inputs, 255.0)
    return Dataset(name, train, test, classes, 255.0, mean, std)


def _split(name: str, root: Path, train: bool, download: bool, emnist_split: str) -> Split:
    options: dict[str, Any] = {"split": emnist_split} if name == "emnist" else {}
    if not download and not root.is_dir():
        raise ConfigError(
            f"data.root: no such folder: {root}; point it to the {name} files or set data.download = true"
        )
    type_of_set = getattr(import_torchvision("datasets"), KNOWN[name].type_name)
    try:
        found = type_of_set(str(root), train=train, download=download, **options)
    except Exception as error:  # missing or corrupt file, no network, disk full: RuntimeError, URLError, OSError, …
        if download:
            fix = "check the network and data.root, or copy the files there by hand"
        else:
            fix = "point data.root to its files or set data.download = true"
        part = "train" if train else "test"
        raise ConfigError(
            f'data.source = "{name}": cannot read its {part} files in {root} ({first_line(error)}); {fix}'
        ) from error
    targets: Labels = np.asarray(found.targets, dtype=np.int64)
    if name == "emnist" and emnist_split == "letters":
        targets = targets - 1  # the only split with labels from 1
    return Split(_channels_first(np.asarray(found.data)), targets)


def _channels_first(images: Array) -> Array:
    if images.ndim == 3:
        return np.ascontiguousarray(images[:, None])
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
