"""Normalise batches on their device."""

from functools import cache
from typing import Any

import numpy.typing as npt
import torch

from raybcgd.data.dataset import Dataset


def normalise(inputs: torch.Tensor, dataset: Dataset, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return (inputs / scale - mean) / std per channel or feature, in torchvision's order of operations.

    Tokens are returned unchanged.

    A batch of multi-channel images is returned in channels_last, which is faster for convolutions. The channel axis is
    the third from last, so stacked batches (clients, n, channels, height, width) also work.
    """
    if inputs.dtype == torch.int64:
        return inputs
    layout = torch.channels_last if inputs.ndim == 4 and inputs.shape[1] > 1 else torch.preserve_format
    out = inputs.to(dtype=dtype, memory_format=layout, copy=True)  # the arithmetic below is in place
    shape = (-1, 1, 1) if inputs.ndim > 2 else (-1,)  # of images, or of the features of a table
    mean, std = (_per_channel(values, dtype, out.device, shape) for values in (dataset.mean, dataset.std))
    return out.div_(dataset.scale).sub_(mean).div_(std)


def input_dtype(dataset: Dataset, dtype: torch.dtype) -> torch.dtype:
    """Return the data type of a model's inputs, for parameters of type `dtype`."""
    return torch.int64 if dataset.tokens else dtype


def as_targets(targets: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """Return labels as they are, and the float targets of a regression with the model's data type."""
    found = torch.from_numpy(targets)
    return found.to(dtype) if found.is_floating_point() else found


@cache
def _per_channel(
    values: tuple[float, ...], dtype: torch.dtype, device: torch.device, shape: tuple[int, ...]
) -> torch.Tensor:
    constants = torch.tensor(values, dtype=dtype, device=device)
    return constants if len(values) == 1 else constants.view(shape)
