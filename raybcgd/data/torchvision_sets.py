"""Torchvision data sets, read from local files or downloaded."""

from pathlib import Path

import numpy as np

from raybcgd.data.dataset import Dataset
from raybcgd.errors import ConfigError, first_line
from raybcgd.torchvision_ops import import_torchvision

KNOWN = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
    "emnist": "EMNIST",
}
"""The torchvision class of each data set."""


def load_torchvision(name: str, root: Path, download: bool, emnist_split: str) -> Dataset:
    """Load the train and test splits of a data set in KNOWN as bytes (n, channels, height, width)."""
    if not download and not root.is_dir():
        raise ConfigError(f"data.root: no such folder: {root}; point it to the files or set data.download = true")
    dataset_class = getattr(import_torchvision("datasets"), KNOWN[name])
    inner = getattr(dataset_class, "base_folder", KNOWN[name])
    if root.name == inner and not (root / inner).exists():  # the folder with the files instead of the one around it
        root = root.parent
    options = {"split": emnist_split} if name == "emnist" else {}
    first_label = 1 if options == {"split": "letters"} else 0  # torchvision calls the unused class 0 "N/A"
    arrays = []
    for part in ("train", "test"):
        try:
            found = dataset_class(str(root), train=part == "train", download=download, **options)
        except Exception as error:  # missing or corrupt file, no network, disk full: RuntimeError, URLError, OSError, …
            complete = f"point data.root to a folder that contains a complete {inner}, or set data.download = true"
            fix = "check the network and data.root" if download else complete
            problem = f"cannot read the {part} files in {root} ({first_line(error)})"
            raise ConfigError(f'data.source = "{name}": {problem}; {fix}') from error
        images, targets = np.asarray(found.data), np.asarray(found.targets, dtype=np.int64)
        arrays += [images if images.ndim == 3 else images.transpose(0, 3, 1, 2), targets - first_label]
    return Dataset.from_tensors(*arrays, classes=len(found.classes) - first_label, name=name)
