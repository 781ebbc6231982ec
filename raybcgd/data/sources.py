"""Where the data comes from: `[data]` in the config, and `load`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from raybcgd.data.dataset import Dataset, Split, channel_statistics
from raybcgd.data.folders import list_image_folder, list_tiny_imagenet, load_listing
from raybcgd.data.parquet import has_parquet, load_parquet
from raybcgd.data.partition import PartitionConfig
from raybcgd.data.phases import PhasesConfig
from raybcgd.data.split import hold_out
from raybcgd.data.torchvision_sets import KNOWN, load_torchvision
from raybcgd.errors import ConfigError
from raybcgd.randomness import stream
from raybcgd.section import Section


class DataConfig(Section):
    """What the clients train on."""

    source: str = "digits"
    """digits (embedded), parquet, image_folder, tiny_imagenet, cifar10, cifar100, mnist, fashion_mnist or emnist.
    All but digits read `root`; the named sets also accept a folder of Parquet files there."""
    root: str | None = None
    """The folder of the files."""
    download: bool = False
    """Fetch a torchvision data set into `root` when it is not there."""
    image_column: str | None = None
    """Parquet column with the pictures. None: found by its name and type."""
    label_column: str | None = None
    """Parquet column with the integer labels. None: found by its name and type."""
    image_size: int | None = Field(None, ge=1, le=4096)
    """Scale picture files to this many pixels a side when they are read. None: they must all have one size."""
    classes: int | None = Field(None, ge=2)
    """Number of classes of picture files. None: as the files say, or the largest train label + 1."""
    emnist_split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "byclass"
    """Which EMNIST."""
    task: Literal["classes", "binary"] = "classes"
    """binary: two classes, for the convex experiments; label 1 is `positive`, label 0 the others."""
    positive: tuple[int, ...] | None = None
    """With task = "binary": the labels that become 1. None: the lower half of them."""
    test_samples: int | None = Field(None, ge=1)
    """Evaluate on this many test samples, the same in every run. None: on all."""
    augment: tuple[Literal["crop", "flip"], ...] = ()
    """Random crop after padding by 4 pixels, random mirror image."""
    partition: PartitionConfig = PartitionConfig()
    """Who holds which samples."""
    phases: PhasesConfig | None = None
    """Block-cyclic data; then only `clients` of the partition counts. None: all data all the time."""


def load(config: DataConfig) -> Dataset:
    """The data set that the config names, checked."""
    if config.source not in SOURCES:
        raise ConfigError(f"data.source {config.source!r} is not known; use one of {', '.join(SOURCES)}")
    dataset = SOURCES[config.source](config)
    if config.augment and dataset.train.inputs.ndim != 4:
        raise ConfigError(f"data.augment needs images, but {config.source!r} has none; leave it out")
    if config.task == "binary":
        dataset = binary(dataset, config.positive)
    if config.test_samples is not None and config.test_samples < len(dataset.test):
        chosen = stream(0, "test samples").permutation(len(dataset.test))[: config.test_samples]
        dataset = replace(dataset, test=dataset.test.take(np.sort(chosen)))
    return dataset


def binary(dataset: Dataset, positive: tuple[int, ...] | None = None) -> Dataset:
    """The same samples with two classes: label 1 for those in `positive` (the lower half of the labels), else 0."""
    chosen = range(dataset.classes // 2) if positive is None else positive
    strange = [label for label in chosen if not 0 <= label < dataset.classes]
    if strange or not 0 < len(set(chosen)) < dataset.classes:
        raise ConfigError(
            f"data.positive is {list(chosen)}; name some, not all, of the labels 0 .. {dataset.classes - 1}"
        )
    train, test = (
        Split(split.inputs, np.isin(split.targets, list(chosen)).astype(np.int64))
        for split in (dataset.train, dataset.test)
    )
    return replace(dataset, train=train, test=test, classes=2)


def _digits(config: DataConfig) -> Dataset:
    """1 797 handwritten digits of 8 x 8 pixels from 0 to 16, embedded in scikit-learn, split by `hold_out`."""
    from sklearn.datasets import load_digits  # here, because it takes a second

    bunch = load_digits()
    images = np.ascontiguousarray(bunch.images.astype(np.uint8)[:, None])
    everything = Split(images, bunch.target.astype(np.int64))
    train, test = (everything.take(part) for part in hold_out(everything.targets))
    mean, std = channel_statistics(train.inputs, 16.0)
    return Dataset("digits", train, test, 10, 16.0, mean, std)


def _parquet(config: DataConfig) -> Dataset:
    return load_parquet(
        folder(config),
        name=config.source,
        image_column=config.image_column,
        label_column=config.label_column,
        image_size=config.image_size,
        classes=config.classes,
    )


def _image_folder(config: DataConfig) -> Dataset:
    return load_listing(list_image_folder(folder(config)), config.source, config.image_size, config.classes)


def _tiny_imagenet(config: DataConfig) -> Dataset:
    root = folder(config)
    if has_parquet(root):
        return _parquet(config)
    return load_listing(list_tiny_imagenet(root), config.source, config.image_size, config.classes)


def _torchvision(config: DataConfig) -> Dataset:
    root = folder(config)
    if has_parquet(root):
        return _parquet(config)
    return load_torchvision(config.source, root, config.download, config.emnist_split)


def folder(config: DataConfig) -> Path:
    """`data.root` as a path; an error if it is not set."""
    if config.root is None:
        fetch = " (with data.download = true: where they shall go)" if config.source in KNOWN else ""
        raise ConfigError(f"data.root is not set; point it to the folder of the {config.source} files{fetch}")
    return Path(config.root).expanduser()


SOURCES: dict[str, Callable[[DataConfig], Dataset]] = {
    "digits": _digits,
    "parquet": _parquet,
    "image_folder": _image_folder,
    "tiny_imagenet": _tiny_imagenet,
    **dict.fromkeys(KNOWN, _torchvision),
}
