"""Random crop and horizontal flip for whole batches, from draws made in advance.

NumPy makes the draws and the device transforms the images. The same seed therefore gives the same images on every
machine, and FedBCGD+ can compute g(x) and g(y) on the same augmented batch.
"""

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

PADDING = 4

Augment = tuple[Literal["crop", "flip"], ...]


class Draws(NamedTuple):
    """Per sample: the crop's top left corner in the padded image, and whether to flip it."""

    tops: npt.NDArray[np.int64]
    lefts: npt.NDArray[np.int64]
    flips: npt.NDArray[np.bool_]

    def take(self, samples: npt.NDArray[np.int64]) -> "Draws":
        """Return the draws of these samples."""
        return Draws(self.tops[samples], self.lefts[samples], self.flips[samples])


def draw(rng: np.random.Generator, count: int, augment: Augment, padding: int = PADDING) -> Draws:
    """Return draws for `count` samples. Disabling crop or flip does not change the draws of the other."""
    corners = rng.integers(0, 2 * padding + 1, size=(2, count), dtype=np.int64)
    flips = rng.random(count) < 0.5
    if "crop" not in augment:
        corners = np.full_like(corners, padding)
    if "flip" not in augment:
        flips = np.zeros_like(flips)
    return Draws(corners[0], corners[1], flips)


def apply(images: torch.Tensor, draws: Draws, padding: int = PADDING) -> torch.Tensor:
    """Zero-pad, crop to the original size and flip a batch (n, channels, height, width) of any dtype on any device.

    As in torchvision, the border is black if applied to bytes and the mean if applied to normalised images.
    """
    n, channels, height, width = images.shape
    tops, lefts, flips = (torch.from_numpy(np.ascontiguousarray(d)).to(images.device) for d in draws)
    rows = tops[:, None] + torch.arange(height, device=images.device)
    columns = lefts[:, None] + torch.arange(width, device=images.device)
    columns = torch.where(flips[:, None], columns.flip(1), columns)
    pixels = rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]
    padded = torch.nn.functional.pad(images, (padding, padding, padding, padding))
    picked = padded.reshape(n, channels, -1).gather(2, pixels.view(n, 1, -1).expand(n, channels, -1))
    out = picked.view(n, channels, height, width)
    channels_last = channels > 1 and images.is_contiguous(memory_format=torch.channels_last)
    return out.contiguous(memory_format=torch.channels_last) if channels_last else out
