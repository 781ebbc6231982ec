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

    Bytes stay bytes, so that each node holds one small copy. Batches are normalised per channel on the device:
    (inputs / scale - mean) / std. The defaults leave float inputs unchanged.
    """

    name: str
    train: Split
    test: Split
    classes: int
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
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
        channels = train.shape[1] if train.ndim == 4 else 1
        if not {len(self.mean), len(self.std)} <= {1, channels}:
            constants = f"mean {self.mean} and std {self.std}"
            raise ConfigError(f"data {self.name!r}: {constants} need 1 or {channels} values, one per channel")

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
        train, test = _split("train", train_inputs, train_targets), _split("test", test_inputs, test_targets)
        if classes is None:
            largest = int(train.targets.max(initial=1))
            if largest >= max(len(train), 2):
                problem = f"the largest train label is {largest}, but there are only {len(train)} train samples"
                raise ConfigError(
                    f"data {name!r}: {problem}; number the labels from 0 without gaps, or set data.classes"
                )
            classes = largest + 1
        is_bytes = train.inputs.dtype == np.uint8
        if scale is None:
            scale = 255.0 if is_bytes else 1.0
        if is_bytes and not (mean and std) and train.inputs.size and scale > 0:
            found_mean, found_std = channel_statistics(train.inputs, scale)
            mean, std = mean or found_mean, std or found_std
        return cls(name, train, test, classes, scale, mean or (0.0,), std or (1.0,))


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
    if labels.dtype.kind not in "biu":
        raise ConfigError(f"data.{part} targets are {labels.dtype}; use integer labels 0 .. classes - 1")
    if samples.dtype == np.uint8 and samples.ndim == 3:
        samples = samples[:, None]  # add the missing channel axis of grey images
    return Split(samples, labels.astype(np.int64, copy=False))


def _array(values: Array | torch.Tensor) -> Array:
    if isinstance(values, torch.Tensor):
        half = values.is_floating_point() and values.itemsize < 4  # NumPy has no bfloat16
        values = (values.float() if half else values).numpy(force=True)
    return np.ascontiguousarray(values, dtype=np.asarray(values).dtype.newbyteorder("="))


def _problem(split: Split, classes: int) -> str:
    """Return what is wrong with a split and how to fix it, or an empty string."""
    inputs, targets = split.inputs, split.targets
    if targets.ndim != 1 or len(inputs) != len(targets):
        return f"{len(inputs)} inputs but targets of shape {targets.shape}; give one label per sample"
    if len(targets) == 0:
        return "it is empty; add at least one sample"
    if inputs.dtype not in (np.uint8, np.float16, np.float32, np.float64):
        return f"inputs are {inputs.dtype}; use uint8 or floats"
    # min and max propagate NaN and need no temporary array.
    if inputs.dtype.kind == "f" and not np.isfinite([inputs.min(initial=0), inputs.max(initial=0)]).all():
        return "inputs contain NaN or infinity; remove them"
    low, high = int(targets.min()), int(targets.max())
    if low < 0:
        return f"labels run from {low} to {high}; number them from 0, for example with `labels - ({low})`"
    if high >= classes:
        fix = f"fix the labels, or set data.classes to {high + 1} (from Python: classes={high + 1})"
        return f"labels run from {low} to {high}, outside 0 .. {classes - 1}; {fix}"
    return ""
