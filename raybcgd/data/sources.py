"""Where the data comes from: `[data]` in the config, and `load`."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from raybcgd.data.dataset import Dataset, Labels, Split, channel_statistics
from raybcgd.data.parquet import load_parquet
from raybcgd.data.partition import Ints, PartitionConfig
from raybcgd.errors import ConfigError
from raybcgd.section import Section

HOLD_OUT_EVERY = 5


class DataConfig(Section):
    """What the clients train on."""

    source: str = "digits"
    """digits (embedded) or parquet (a folder of Parquet files in the Hugging Face image layout)."""
    root: str | None = None
    """The folder of the files; every source but digits needs it."""
    download: bool = False
    """Fetch a torchvision data set into `root` when it is not there."""
    image_column: str | None = None
    """Parquet column with the pictures. None: found by its type."""
    label_column: str | None = None
    """Parquet column with the integer labels. None: found by its name."""
    image_size: int | None = Field(None, ge=1, le=4096)
    """Scale pictures to this many pixels a side when they are read. None: they must all have one size."""
    classes: int | None = Field(None, ge=2)
    """Number of classes. None: as the files say, or the largest train label + 1."""
    augment: tuple[Literal["crop", "flip"], ...] = ()
    """Random crop after padding by 4 pixels, random mirror image."""
    partition: PartitionConfig = PartitionConfig()
    """Who holds which samples."""


def load(config: DataConfig) -> Dataset:
    """The data set that the config names, checked."""
    if config.source not in SOURCES:
        raise ConfigError(f"data.source {config.source!r} is not known; use one of {', '.join(SOURCES)}")
    return SOURCES[config.source](config)


def hold_out(targets: Labels) -> tuple[Ints, Ints]:
    """Train and test indices where no split is given: of each label, every fifth sample in file order is test data."""
    order = np.argsort(targets, kind="stable")
    counts = np.bincount(targets)
    rank = np.empty(len(targets), dtype=np.int64)
    rank[order] = np.arange(len(targets)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_test = rank % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def _digits(config: DataConfig) -> Dataset:
    """1 797 handwritten digits of 8 x 8 pixels from 0 to 16, embedded in scikit-learn, split by `hold_out`."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = bunch.images.astype(np.uint8)[:, None]
    everything = Split(np.ascontiguousarray(images), bunch.target.astype(np.int64))
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


def folder(config: DataConfig) -> Path:
    """`data.root` as a path; an error if it is not set."""
    if config.root is None:
        raise ConfigError(f"data.root is not set; point it to the folder of the {config.source} files")
    return Path(config.root).expanduser()


SOURCES: dict[str, Callable[[DataConfig], Dataset]] = {
    "digits": _digits,
    "parquet": _parquet,
}
