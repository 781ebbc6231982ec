"""Random crop and horizontal flip for whole batches, from draws made in advance.

NumPy makes the draws and the device transforms the images. The same seed therefore gives the same images on every
machine, and FedBCGD+ can compute g(x) and g(y) on the same augmented batch.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

PADDING = 4


class Draws(NamedTuple):
    """Per sample: the crop's top left corner in the padded image, and whether to flip it."""

    tops: npt.NDArray[np.int64]
    lefts: npt.NDArray[np.int64]
    flips: npt.NDArray[np.bool_]

    def take(self, samples: npt.NDArray[np.int64]) -> "Draws":
        """Return the draws of these samples."""
        return Draws(self.tops[samples], self.lefts[samples], self.flips[samples])


def draw(rng: np.random.Generator, count: int, augment: Collection[str]) -> Draws:
    """Return draws for `count` samples. Disabling crop or flip does not change the draws of the other."""
    corners = rng.integers(0, 2 * PADDING + 1, size=(2, count), dtype=np.int64)
    flips = rng.random(count) < 0.5
    if "crop" not in augment:
        corners[:] = PADDING
    if "flip" not in augment:
        flips[:] = False
    return Draws(corners[0], corners[1], flips)


def apply(images: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Zero-pad, crop to the original size and flip a batch (n, channels, height, width) of any dtype on any device.

    As in torchvision, the border is zero: black in byte images, the mean colour in normalised images.
    """
    channels, height, width = images.shape[1:]
    tops, lefts, flips = (torch.as_tensor(d, device=images.device) for d in draws)
    rows = tops[:, None] + torch.arange(height, device=images.device)
    columns = lefts[:, None] + torch.arange(width, device=images.device)
    columns = torch.where(flips[:, None], columns.flip(1), columns)
    pixels = rows[:, :, None] * (width + 2 * PADDING) + columns[:, None, :]
    padded = torch.nn.functional.pad(images, (PADDING, PADDING, PADDING, PADDING))
    out = padded.flatten(2).gather(2, pixels.flatten(1)[:, None].expand(-1, channels, -1)).view(images.shape)
    channels_last = images.is_contiguous(memory_format=torch.channels_last)
    return out.contiguous(memory_format=torch.channels_last) if channels_last else out
