"""Normalise batches of bytes on their device."""

from functools import cache
from typing import Protocol

import torch


class Constants(Protocol):
    """The constants of a normalisation. A `Dataset` has them."""

    @property
    def scale(self) -> float: ...

    @property
    def mean(self) -> tuple[float, ...]: ...

    @property
    def std(self) -> tuple[float, ...]: ...


def normalise(inputs: torch.Tensor, constants: Constants, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return (inputs / scale - mean) / std per channel, in torchvision's order of operations.

    A batch of multi-channel images is returned in channels_last, which is faster for convolutions. The channel axis is
    the third from last, so stacked batches (clients, n, channels, height, width) also work.
    """
    images = inputs.ndim == 4 and inputs.shape[1] > 1
    layout = torch.channels_last if images else torch.preserve_format
    scale, mean, std = constants.scale, constants.mean, constants.std
    as_is = scale == 1 and all(m == 0 for m in mean) and all(s == 1 for s in std)
    # Copy, because the arithmetic below is in place.
    out = inputs.to(dtype=dtype, memory_format=layout, copy=not as_is)
    if as_is:
        return out
    return out.div_(scale).sub_(_per_channel(mean, dtype, out.device)).div_(_per_channel(std, dtype, out.device))


@cache
def _per_channel(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    constants = torch.tensor(values, dtype=dtype, device=device)
    return constants if len(values) == 1 else constants.view(-1, 1, 1)
