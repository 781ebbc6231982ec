"""A data set in memory: train and test arrays and their normalisation constants."""

import logging
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from raybcgd.channels import channels_last
from raybcgd.data.clients import Clients, as_clients
from raybcgd.errors import ConfigError

log = logging.getLogger(__name__)
Array = npt.NDArray[np.generic]
Labels = npt.NDArray[np.int64]
DECILES = 10
"""Number of ranges into which the targets of a regression are divided, where a partition needs labels."""


@dataclass(frozen=True, repr=False)
class Split:
    """Samples and targets. Images are (n, channels, height, width) and C-contiguous; byte images stay uint8."""

    inputs: Array
    targets: npt.NDArray[Any]
    """Labels, or floats for regression."""

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return f"Split({len(self)} samples of {'x'.join(map(str, self.inputs.shape[1:]))} {self.inputs.dtype})"

    def take(self, indices: npt.NDArray[np.int64]) -> Self:
        """Return a copy of the samples at `indices`."""
        return type(self)(self.inputs[indices], self.targets[indices])


class Columns(NamedTuple):
    """The columns of Parquet files that a data set was read from."""

    label: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Dataset:
    """Train and test data, checked on construction.

    Bytes stay bytes, so that each node holds one small copy. Batches are normalised per channel, or per feature of a
    table, on the device: (inputs / scale - mean) / std. The defaults leave float inputs unchanged. Integers other than
    bytes are tokens, which are never normalised.
    """

    name: str
    train: Split
    test: Split
    classes: int
    """Number of classes. 0: the targets are floats, for regression."""
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    clients: Clients | None = None
    """The data set's own clients, for the natural partition. None: it has none."""
    columns: Columns | None = None
    """The columns that were read. None: the data set is not from Parquet files."""
    from_config: bool = False
    """Whether `[data]` describes the data set. False: it was made in Python."""

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("test", self.test)):
            if problem := _problem(split, self.classes):
                raise ConfigError(f"data.{part} of {self.name!r}: {problem}")
        train, test = self.train.inputs, self.test.inputs
        if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
            raise ConfigError(
                f"data.test of {self.name!r} has {test.dtype} samples of shape {test.shape[1:]} but data.train has "
                f"{train.dtype} samples of shape {train.shape[1:]}; use the same shape and dtype for both"
            )
        if self.scale <= 0 or min(self.std, default=0.0) <= 0:
            raise ConfigError(f"data {self.name!r}: scale {self.scale} and std {self.std} must be positive")
        channels = train.shape[1] if train.ndim in (2, 4) else 1
        if not {len(self.mean), len(self.std)} <= {1, channels}:
            constants = f"mean {self.mean} and std {self.std}"
            raise ConfigError(f"data {self.name!r}: {constants} need 1 or {channels} values, one per channel")
        if self.tokens and (self.scale, self.mean, self.std) != (1.0, (0.0,), (1.0,)):
            raise ConfigError(
                f"data {self.name!r}: integer inputs are tokens; remove scale, mean and std, or use floats"
            )

    def __repr__(self) -> str:
        targets = "regression" if self.regression else f"{self.classes} classes"
        clients = "" if self.clients is None else f", {len(self.clients)} clients"
        return f"Dataset({self.name}: train {self.train}, test {self.test}, {targets}{clients})"

    @property
    def regression(self) -> bool:
        """Whether the targets are floats."""
        return self.classes == 0

    @property
    def tokens(self) -> bool:
        """Whether the inputs are integers for an embedding."""
        return self.train.inputs.dtype.kind == "i"

    @cached_property
    def labels(self) -> Labels:
        """The label of each training sample; the decile of its target for regression, numbered from 0."""
        targets = self.train.targets
        if not self.regression:
            return targets
        edges = np.quantile(targets, np.arange(1, DECILES) / DECILES)
        return np.searchsorted(edges, targets, side="right").astype(np.int64)

    @property
    def label_count(self) -> int:
        """Number of different `labels`."""
        return DECILES if self.regression else self.classes

    @classmethod
    def from_tensors(
        cls,
        train_inputs: Array | torch.Tensor,
        train_targets: Array | torch.Tensor,
        test_inputs: Array | torch.Tensor,
        test_targets: Array | torch.Tensor,
        *,
        classes: int | None = None,
        name: str = "tensors",
        scale: float | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        partition: Any = None,
    ) -> Self:
        """Make a data set from your own NumPy arrays or tensors. Images are (n, channels, height, width).

        For uint8 inputs, `scale` defaults to 255, and `mean` and `std` to those of the train data. Float inputs are
        unchanged by default. Other integers are tokens. Integer targets are labels from 0, and `classes` defaults to
        the largest train label + 1; float targets are for regression.

        `partition` assigns the training samples to clients: one list of sample indices per client, a dict of such lists
        by client name, or one client id per sample.
        """
        train, test = _split("train", train_inputs, train_targets), _split("test", test_inputs, test_targets)
        if train.targets.dtype.kind == "f":
            if classes:
                raise ConfigError(f"data {name!r}: targets are {train.targets.dtype}; use integer labels with classes=")
            classes = 0
        if classes is None:
            classes = _count_classes(name, train.targets, test.targets)
        is_bytes = train.inputs.dtype == np.uint8
        if scale is None:
            scale = 255.0 if is_bytes else 1.0
        if is_bytes and not (mean and std) and train.inputs.size and scale > 0:
            found_mean, found_std = channel_statistics(train.inputs, scale)
            mean, std = mean or found_mean, std or found_std
        made = cls(name, train, test, classes, scale, mean or (0.0,), std or (1.0,)).partitioned(partition)
        if not made.regression and train.targets.min() == train.targets.max():
            problem = f"all training samples have label {train.targets[0]}"
            log.warning("note: data %r: %s; if this is not intended, correct the labels", name, problem)
        return made

    def partitioned(self, partition: Any) -> Self:
        """Return the data set with other clients: see `from_tensors`. None: unchanged."""
        return self if partition is None else replace(self, clients=as_clients(partition, len(self.train)))


def channel_statistics(images: Array, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of bytes / scale per channel.

    Integer sums make the result identical on every machine.
    """
    channels = images.shape[1] if images.ndim == 4 else 1
    pixels = np.asarray(images, dtype=np.uint8).reshape(len(images), channels, -1)
    n = pixels.size // channels
    totals = pixels.sum(axis=(0, 2), dtype=np.int64).tolist()
    squares = np.einsum("nci,nci->c", pixels, pixels, dtype=np.int64).tolist()
    deviations = [math.sqrt(n * s - t**2) / n / scale for t, s in zip(totals, squares, strict=True)]
    # A constant channel has a deviation of zero and is only centred.
    return tuple(t / n / scale for t in totals), tuple(deviation or 1.0 for deviation in deviations)


def _split(part: str, inputs: Array | torch.Tensor, targets: Array | torch.Tensor) -> Split:
    samples, labels = _array(inputs), _array(targets)
    if samples.ndim < 2:
        raise ConfigError(f"data.{part} inputs have shape {samples.shape}; give one row or image per sample")
    if channels_last(samples.shape[1:]):
        call = "permute" if isinstance(inputs, torch.Tensor) else "transpose"
        raise ConfigError(
            f"data.{part} inputs have shape {samples.shape}, with the channels last; make it (n, channels, height, "
            f"width), for example with `inputs.{call}(0, 3, 1, 2)`"
        )
    if labels.dtype.kind not in "biuf":
        raise ConfigError(f"data.{part} targets are {labels.dtype}; use integer labels, or floats for regression")
    if labels.dtype.kind == "f" and labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if samples.dtype == np.uint8 and samples.ndim == 3:
        samples = samples[:, None]  # add the missing channel axis of grey images
    if samples.dtype.kind in "iu" and samples.dtype != np.uint8:
        samples = samples.astype(np.int64, copy=False)  # torch has few operations on other integers
    return Split(samples, labels if labels.dtype.kind == "f" else labels.astype(np.int64, copy=False))


def _count_classes(name: str, train: Labels, test: Labels) -> int:
    """Return the largest train label + 1. Raise an error if the labels do not look like 0, 1, …"""
    largest = int(train.max(initial=1))
    if largest >= max(len(train), 2):
        problem = f"the largest train label is {largest}, but there are only {len(train)} training samples"
        raise ConfigError(f"data {name!r}: {problem}; number the labels from 0 without gaps, or set data.classes")
    lowest = min(train.min(initial=largest), test.min(initial=largest))
    if lowest > 0:
        keep = f"set data.classes to {largest + 1} (from Python: classes={largest + 1}) to keep an empty class"
        raise ConfigError(
            f"data {name!r}: labels run from {lowest} to {largest}, so no sample has label 0; number them from 0, for "
            f"example with `labels - {lowest}`, or {keep}"
        )
    missing = np.setdiff1d(np.arange(train.max(initial=0)), np.append(train, test)).tolist() if lowest == 0 else []
    if missing:
        listed = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        which = "label" if len(missing) == 1 else "labels"
        problem = f"labels run from 0 to {largest}, but no sample has {which} {listed}"
        log.warning("note: data %r: %s; if this is not intended, number the labels without gaps", name, problem)
    return largest + 1


def _array(values: Array | torch.Tensor) -> Array:
    if isinstance(values, torch.Tensor):
        half = values.is_floating_point() and values.itemsize < 4  # NumPy has no bfloat16
        values = (values.float() if half else values).numpy(force=True)
    return np.ascontiguousarray(values, dtype=np.asarray(values).dtype.newbyteorder("="))


def _one_hot(targets: Array) -> bool:
    return targets.ndim == 2 and bool(np.isin(targets, (0, 1)).all() and (targets.sum(axis=1) == 1).all())


def _problem(split: Split, classes: int) -> str:
    """Return what is wrong with a split and how to fix it, or an empty string."""
    inputs, targets = split.inputs, split.targets
    if targets.ndim != 1 or len(inputs) != len(targets):
        found = f"{len(inputs)} inputs but targets of shape {targets.shape}"
        if targets.dtype.kind == "f" and not _one_hot(targets):
            example = ", for example with `targets[:, 0]`" if targets.ndim == 2 else ""
            return f"{found}; give one value per sample (a regression has one output){example}"
        fix = "squeeze(1)" if targets.shape[1:] == (1,) else "argmax(1)"  # a column, or one-hot rows
        example = f", for example with `targets.{fix}`" if targets.ndim == 2 else ""
        return f"{found}; give one label per sample{example}"
    if len(targets) == 0:
        return "it is empty; add at least one sample"
    if inputs.dtype not in (np.uint8, np.int64, np.float16, np.float32, np.float64):
        return f"inputs are {inputs.dtype}; use uint8 or floats, or integers for tokens"
    if inputs.dtype == np.int64 and inputs.min(initial=0) < 0:
        return f"inputs have the token {inputs.min()}; number tokens from 0"
    # min and max propagate NaN and need no temporary array.
    if inputs.dtype.kind == "f" and not np.isfinite([inputs.min(initial=0), inputs.max(initial=0)]).all():
        return "inputs contain NaN or infinity; remove them"
    if (targets.dtype.kind == "f") != (classes == 0):
        kind = "floats, for regression" if classes == 0 else f"labels of {classes} classes"
        return f"targets are {targets.dtype}, but they should be {kind}; use the same kind in both splits"
    if classes == 0:
        return "" if np.isfinite(targets).all() else "targets contain NaN or infinity; remove them"
    low, high = int(targets.min()), int(targets.max())
    if low < 0:
        return f"labels run from {low} to {high}; number them from 0, for example with `labels - ({low})`"
    if high >= classes:
        fix = f"fix the labels, or set data.classes to {high + 1} (from Python: classes={high + 1})"
        return f"labels run from {low} to {high}, outside 0 .. {classes - 1}; {fix}"
    return ""
