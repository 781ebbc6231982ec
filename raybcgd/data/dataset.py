"""A data set in memory: train and test arrays, and the constants that turn its bytes into numbers."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from raybcgd.errors import ConfigError

Array = npt.NDArray[np.generic]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Samples and their labels. Images are (n, channels, height, width), C-contiguous, uint8 when they were bytes."""

    inputs: Array
    targets: Labels

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, indices: npt.NDArray[np.int64]) -> Self:
        """The samples at `indices`, copied."""
        return type(self)(self.inputs[indices], self.targets[indices])


@dataclass(frozen=True)
class Dataset:
    """Train and test data, checked when made.

    Bytes stay bytes, so that a node holds one small copy; a batch becomes (inputs / scale - mean) / std per channel on
    the device. Floats are taken as they are: scale 1, mean 0, std 1.
    """

    name: str
    train: Split
    test: Split
    classes: int
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Refuse data that no model could be trained on, with one line that says what to change."""
        for part, split in (("train", self.train), ("test", self.test)):
            _check_split(f"data.{part} of {self.name!r}", split, self.classes)
        train, test = self.train.inputs, self.test.inputs
        if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
            raise ConfigError(
                f"data.test of {self.name!r} has {test.dtype} samples of shape {test.shape[1:]} but data.train has "
                f"{train.dtype} of {train.shape[1:]}; give both the same shape and type"
            )
        if self.scale <= 0 or min(self.std, default=0.0) <= 0:
            raise ConfigError(f"data {self.name!r}: scale {self.scale} and std {self.std} must be positive")
        channels = train.shape[1] if train.ndim == 4 else 1
        if not {len(self.mean), len(self.std)} <= {1, channels}:
            raise ConfigError(
                f"data {self.name!r}: mean {self.mean} and std {self.std} need 1 or {channels} values, one a channel"
            )

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
    ) -> Self:
        """A data set of one's own, from numpy arrays or tensors, images as (n, channels, height, width).

        uint8 inputs are standardised by the train data's mean and deviation (or by the constants given); floats are
        used as they are. `classes` is the largest train label + 1 unless given.
        """
        train = Split(_inputs(train_inputs, "data.train inputs"), _targets(train_targets, "data.train targets"))
        test = Split(_inputs(test_inputs, "data.test inputs"), _targets(test_targets, "data.test targets"))
        if classes is None:
            classes = infer_classes(train.targets, name)
        is_bytes = train.inputs.dtype == np.uint8
        scale = scale if scale is not None else (255.0 if is_bytes else 1.0)
        if is_bytes and (mean is None or std is None) and train.inputs.size and scale > 0:
            found_mean, found_std = channel_statistics(train.inputs, scale)
            mean, std = mean or found_mean, std or found_std
        return cls(name, train, test, classes, scale, mean or (0.0,), std or (1.0,))


def infer_classes(train_targets: Labels, name: str) -> int:
    """Largest label + 1, unless that cannot be a number of classes."""
    classes = int(train_targets.max(initial=0)) + 1
    if classes > max(len(train_targets), 2):
        raise ConfigError(
            f"data {name!r}: largest train label {classes - 1} but only {len(train_targets)} train samples; "
            f"number the labels from 0 without gaps, or set data.classes"
        )
    return max(classes, 2)


def channel_statistics(images: Array, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of bytes / scale, per channel, from sums of whole numbers: the same on every machine."""
    channels = [images[:, c] for c in range(images.shape[1])] if images.ndim == 4 else [images]
    means, deviations = [], []
    for channel in channels:
        n = channel.size
        total = sum(int(piece.sum(dtype=np.int64)) for piece in _pieces(channel))
        squares = sum(int(np.square(piece, dtype=np.uint16).sum(dtype=np.int64)) for piece in _pieces(channel))
        deviation = math.sqrt(n * squares - total**2) / n / scale
        means.append(total / n / scale)
        deviations.append(deviation or 1.0)  # a channel of one value: centring it is all one can do
    return tuple(means), tuple(deviations)


def _pieces(array: Array, rows: int = 4096) -> list[Array]:
    """Views of a few thousand rows, so that what is derived from them stays small."""
    return [array[start : start + rows] for start in range(0, len(array), rows)]


def _array(values: Array | torch.Tensor) -> Array:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        # numpy has no bfloat16, and half floats are for the device
        values = (values.float() if values.is_floating_point() and values.itemsize < 4 else values).numpy()
    array = np.asarray(values)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _inputs(values: Array | torch.Tensor, where: str) -> Array:
    array = _array(values)
    if array.ndim < 2:
        raise ConfigError(f"{where} have shape {array.shape}; give one row (or image) a sample")
    if array.dtype == np.uint8 and array.ndim == 3:
        array = array[:, None]  # grey images without a channel axis
    return np.ascontiguousarray(array)


def _targets(values: Array | torch.Tensor, where: str) -> Labels:
    array = _array(values)
    if array.dtype.kind not in "biu":
        raise ConfigError(f"{where} are {array.dtype}; give integer labels 0 .. classes - 1")
    return np.ascontiguousarray(array, dtype=np.int64)


def _check_split(where: str, split: Split, classes: int) -> None:
    inputs, targets = split.inputs, split.targets
    if targets.ndim != 1 or len(inputs) != len(targets):
        raise ConfigError(
            f"{where}: {len(inputs)} inputs but targets of shape {targets.shape}; give one label a sample"
        )
    if len(targets) == 0:
        raise ConfigError(f"{where} is empty; give it at least one sample")
    if inputs.dtype not in (np.uint8, np.float16, np.float32, np.float64):
        raise ConfigError(f"{where}: inputs are {inputs.dtype}; give uint8 or floats")
    if inputs.dtype.kind == "f" and not all(np.isfinite(piece).all() for piece in _pieces(inputs)):
        raise ConfigError(f"{where}: inputs hold NaN or infinity; clean the data")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise ConfigError(
            f"{where}: labels run from {low} to {high}, outside 0 .. {classes - 1}; "
            f"mend the labels or set data.classes to {max(high, 0) + 1}"
        )
