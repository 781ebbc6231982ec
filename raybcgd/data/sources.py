"""Data sources: functions that take `[data]` and return a data set. settings.py maps names to them."""

import gzip
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from raybcgd.data.dataset import Dataset, Split, channel_statistics
from raybcgd.data.folders import list_image_folder, list_tiny_imagenet, load_listing
from raybcgd.data.from_python import as_dataset
from raybcgd.data.parquet import has_parquet, load_parquet
from raybcgd.data.settings import SOURCES, DataConfig
from raybcgd.data.split import hold_out, hold_out_share
from raybcgd.data.torchvision_sets import KNOWN, load_torchvision
from raybcgd.errors import ConfigError
from raybcgd.randomness import stream


def load(config: DataConfig, partition: Any = None) -> Dataset:
    """Load the data set that a config names, with the clients of a user's partition, if one is given."""
    name, read = SOURCES.name_of(config.source), SOURCES.resolve(config.source)
    with SOURCES.running(config.source):
        dataset = read(config)
    if not isinstance(dataset, Dataset):
        raise ConfigError(f'data.source = "{name}" returned {type(dataset).__name__}; return a raybcgd.Dataset')
    if config.client_column is not None and dataset.clients is None:
        raise ConfigError(f'data.client_column has no effect with data.source = "{name}"; remove it')
    return replace(cut(dataset.partitioned(partition), config), from_config=True)


def load_once(config: DataConfig, dataset: Dataset | tuple[Any, ...] | None, partition: Any) -> dict[str, Any]:
    """Load the data of several runs. Return the arguments `dataset` and `partition` for each of them."""
    found = load(config, partition) if dataset is None else as_dataset(dataset).partitioned(partition)
    return {"dataset": found, "partition": None if partition is None else found.clients}


def cut(dataset: Dataset, config: DataConfig) -> Dataset:
    """Return the samples that a run uses, and the labels of its task."""
    if config.task == "binary":
        dataset = binary(dataset, config.positive)
    if config.task == "regression" and not dataset.regression:
        splits = {"train": dataset.train, "test": dataset.test}
        numbers = {part: replace(split, targets=split.targets.astype(np.float32)) for part, split in splits.items()}
        dataset = replace(dataset, classes=0, train=numbers["train"], test=numbers["test"])
    if config.validation_share > 0:
        train, validation = hold_out_share(dataset.labels, config.validation_share, dataset.clients)
        if len(train) == 0:
            raise ConfigError(
                f"data.validation_share = {config.validation_share:g} holds out all {len(dataset.train)} training "
                "samples; lower it, or add samples"
            )
        evaluated = dataset.train.take(validation) if config.evaluate_on == "validation" else dataset.test
        clients = None if dataset.clients is None else dataset.clients.take(train)
        dataset = replace(dataset, train=dataset.train.take(train), test=evaluated, clients=clients)
    if config.test_samples is not None and config.test_samples < len(dataset.test):
        chosen = stream(0, "test samples").permutation(len(dataset.test))[: config.test_samples]
        dataset = replace(dataset, test=dataset.test.take(np.sort(chosen)))
    return dataset


def binary(dataset: Dataset, positive: tuple[int, ...] | None = None) -> Dataset:
    """Return the data set with two classes: label 1 for the labels in `positive` (default: the lower half), else 0."""
    if dataset.regression:
        raise ConfigError('data.task = "binary" needs labels, but the targets are floats; remove it')
    chosen = range(dataset.classes // 2) if positive is None else positive
    unknown = [label for label in chosen if not 0 <= label < dataset.classes]
    if unknown or not 0 < len(set(chosen)) < dataset.classes:
        raise ConfigError(
            f"data.positive = {list(chosen)}: name some, but not all, of the labels 0 .. {dataset.classes - 1}"
        )
    train, test = (
        Split(split.inputs, np.isin(split.targets, list(chosen)).astype(np.int64))
        for split in (dataset.train, dataset.test)
    )
    return replace(dataset, train=train, test=test, classes=2)


def digits(config: DataConfig) -> Dataset:
    """Return scikit-learn's 1 797 handwritten digits of 8 x 8 pixels with values from 0 to 16, split by `hold_out`."""
    rows = _digits_table()
    everything = Split(rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].astype(np.int64))
    train, test = (everything.take(part) for part in hold_out(everything.targets))
    mean, std = channel_statistics(train.inputs, 16.0)
    return Dataset("digits", train, test, 10, 16.0, mean, std)


@cache
def _digits_table() -> np.ndarray:
    """Return one row per digit: 64 pixels and the label. Avoid importing scikit-learn, which takes 0.7 s."""
    if (spec := find_spec("sklearn")) is not None and spec.origin is not None:
        file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.exists():
            with gzip.open(file, "rt") as lines:
                return np.loadtxt(lines, np.uint8, delimiter=",")
    from sklearn.datasets import load_digits  # a version that keeps the file elsewhere

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target]).astype(np.uint8)


def parquet(config: DataConfig) -> Dataset:
    """Read Parquet files: images in the Hugging Face layout, tables or token sequences."""
    return load_parquet(folder(config), config, SOURCES.name_of(config.source))


def image_folder(config: DataConfig) -> Dataset:
    """Read image files, one folder per class."""
    return load_listing(list_image_folder(folder(config)), "image_folder", config.image_size, config.classes)


def tiny_imagenet(config: DataConfig) -> Dataset:
    """Read Tiny ImageNet from its original files or from Parquet files."""
    root = folder(config)
    if has_parquet(root):
        return parquet(config)
    _refuse(config, "image_column", "label_column")
    return load_listing(list_tiny_imagenet(root), "tiny_imagenet", config.image_size, config.classes)


def torchvision_set(config: DataConfig) -> Dataset:
    """Read a torchvision data set from its original files or from Parquet files."""
    root = folder(config)
    if has_parquet(root):
        if config.emnist_split != DataConfig.model_fields["emnist_split"].default:
            raise ConfigError("data.emnist_split has no effect with Parquet files; remove it")
        return parquet(config)
    _refuse(config, "image_column", "label_column", "image_size", "classes")
    return load_torchvision(str(config.source), root, config.download, config.emnist_split)


def _refuse(config: DataConfig, *settings: str) -> None:
    """Raise an error if a setting is set that has no effect with a source's original files."""
    for name in settings:
        if getattr(config, name) is not None:
            raise ConfigError(
                f'data.{name} has no effect with the original files of data.source = "{config.source}"; remove it, or '
                "point data.root to Parquet files"
            )


def folder(config: DataConfig) -> Path:
    """Return `data.root` as an absolute path, so that errors show where it was looked for."""
    if config.root is None:
        download = ", and data.download = true to download them" if config.source in KNOWN else ""
        raise ConfigError(f"data.root is not set; set it to the folder of the {config.source} files{download}")
    return Path(config.root).expanduser().absolute()
