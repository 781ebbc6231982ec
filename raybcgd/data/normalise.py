"""Normalise batches of bytes on their device."""

from functools import cache

import torch

from raybcgd.data.dataset import Dataset


def normalise(inputs: torch.Tensor, dataset: Dataset, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return (inputs / scale - mean) / std per channel, in torchvision's order of operations.

    A batch of multi-channel images is returned in channels_last, which is faster for convolutions. The channel axis is
    the third from last, so stacked batches (clients, n, channels, height, width) also work.
    """
    layout = torch.channels_last if inputs.ndim == 4 and inputs.shape[1] > 1 else torch.preserve_format
    out = inputs.to(dtype=dtype, memory_format=layout, copy=True)  # the arithmetic below is in place
    mean, std = (_per_channel(values, dtype, out.device) for values in (dataset.mean, dataset.std))
    return out.div_(dataset.scale).sub_(mean).div_(std)


@cache
def _per_channel(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    constants = torch.tensor(values, dtype=dtype, device=device)
    return constants if len(values) == 1 else constants.view(-1, 1, 1)
