"""A data set in memory: train and test arrays and their normalisation constants."""

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
    """Samples and labels. Images are (n, channels, height, width) and C-contiguous; byte images stay uint8."""

    inputs: Array
    targets: Labels

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, indices: npt.NDArray[np.int64]) -> Self:
        """Return a copy of the samples at `indices`."""
        return type(self)(self.inputs[indices], self.targets[indices])


@dataclass(frozen=True)
class Dataset:
    """Train and test data, checked on construction.

    Bytes stay bytes, so that each node holds one small copy; batches are normalised per channel on the device to
    (inputs / scale - mean) / std. The defaults leave float inputs unchanged.
    """

    name: str
    train: Split
    test: Split
    classes: int
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("test", self.test)):
            _check_split(f"data.{part} of {self.name!r}", split, self.classes)
        train, test = self.train.inputs, self.test.inputs
        if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
            raise ConfigError(
                f"data.test of {self.name!r} has {test.dtype} samples of shape {test.shape[1:]} but data.train has "
                f"{train.dtype} samples of shape {train.shape[1:]}; use the same shape and dtype for both"
            )
        if self.scale <= 0 or min(self.std, default=0.0) <= 0:
            raise ConfigError(f"data {self.name!r}: scale {self.scale} and std {self.std} must be positive")
        channels = train.shape[1] if train.ndim == 4 else 1
        if not {len(self.mean), len(self.std)} <= {1, channels}:
            raise ConfigError(
                f"data {self.name!r}: mean {self.mean} and std {self.std} need 1 or {channels} values, one per channel"
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
        """Make a data set from your own NumPy arrays or tensors. Images are (n, channels, height, width).

        For uint8 inputs, `scale` defaults to 255, and `mean` and `std` to those of the train data. Float inputs are
        unchanged by default. `classes` defaults to the largest train label + 1.
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
    """Return the largest label + 1. Refuse more classes than samples."""
    classes = int(train_targets.max(initial=0)) + 1
    if classes > max(len(train_targets), 2):
        raise ConfigError(
            f"data {name!r}: largest train label {classes - 1} but only {len(train_targets)} train samples; "
            f"number the labels from 0 without gaps, or set data.classes"
        )
    return max(classes, 2)


def channel_statistics(images: Array, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of bytes / scale per channel.

    Integer sums make the result identical on every machine.
    """
    channels = [images[:, c] for c in range(images.shape[1])] if images.ndim == 4 else [images]
    means, deviations = [], []
    for channel in channels:
        n = channel.size
        total = sum(int(piece.sum(dtype=np.int64)) for piece in _pieces(channel))
        squares = sum(int(np.square(piece, dtype=np.uint16).sum(dtype=np.int64)) for piece in _pieces(channel))
        deviation = math.sqrt(n * squares - total**2) / n / scale
        means.append(total / n / scale)
        deviations.append(deviation or 1.0)  # a constant channel can only be centred
    return tuple(means), tuple(deviations)


def _pieces(array: Array, rows: int = 4096) -> list[Array]:
    """Return views of a few thousand rows each, to bound the size of temporaries."""
    return [array[start : start + rows] for start in range(0, len(array), rows)]


def _array(values: Array | torch.Tensor) -> Array:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        # NumPy has no bfloat16; half precision is for the device
        values = (values.float() if values.is_floating_point() and values.itemsize < 4 else values).numpy()
    array = np.asarray(values)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _inputs(values: Array | torch.Tensor, where: str) -> Array:
    array = _array(values)
    if array.ndim < 2:
        raise ConfigError(f"{where} have shape {array.shape}; give one row or image per sample")
    if array.dtype == np.uint8 and array.ndim == 3:
        array = array[:, None]  # add the missing channel axis of grey images
    return np.ascontiguousarray(array)


def _targets(values: Array | torch.Tensor, where: str) -> Labels:
    array = _array(values)
    if array.dtype.kind not in "biu":
        raise ConfigError(f"{where} are {array.dtype}; use integer labels 0 .. classes - 1")
    return np.ascontiguousarray(array, dtype=np.int64)


def _check_split(where: str, split: Split, classes: int) -> None:
    inputs, targets = split.inputs, split.targets
    if targets.ndim != 1 or len(inputs) != len(targets):
        raise ConfigError(
            f"{where}: {len(inputs)} inputs but targets of shape {targets.shape}; give one label per sample"
        )
    if len(targets) == 0:
        raise ConfigError(f"{where} is empty; add at least one sample")
    if inputs.dtype not in (np.uint8, np.float16, np.float32, np.float64):
        raise ConfigError(f"{where}: inputs are {inputs.dtype}; use uint8 or floats")
    if inputs.dtype.kind == "f" and not all(np.isfinite(piece).all() for piece in _pieces(inputs)):
        raise ConfigError(f"{where}: inputs contain NaN or infinity; remove them")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise ConfigError(
            f"{where}: labels run from {low} to {high}, outside 0 .. {classes - 1}; "
            f"fix the labels or set data.classes to {max(high, 0) + 1}"
        )
