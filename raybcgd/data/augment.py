"""Random crop and mirror image, on whole batches, from draws that are made beforehand.

The draws are numpy's and the pictures the device's, so a sample gets the same picture on every machine, and FedBCGD+
can show g(x) and g(y) the same one.
"""

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

PADDING = 4

Augment = tuple[Literal["crop", "flip"], ...]


class Draws(NamedTuple):
    """One choice a sample: where the crop begins in the padded picture, and whether it is mirrored."""

    tops: npt.NDArray[np.int64]
    lefts: npt.NDArray[np.int64]
    flips: npt.NDArray[np.bool_]

    def take(self, samples: npt.NDArray[np.int64]) -> "Draws":
        """The draws of these samples, as for a batch of a client's data."""
        return Draws(self.tops[samples], self.lefts[samples], self.flips[samples])


def draw(rng: np.random.Generator, count: int, augment: Augment, padding: int = PADDING) -> Draws:
    """Draws for `count` samples. What is not asked for does nothing, and does not change the other draws."""
    corners = rng.integers(0, 2 * padding + 1, size=(2, count), dtype=np.int64)
    flips = rng.random(count) < 0.5
    if "crop" not in augment:
        corners = np.full_like(corners, padding)
    if "flip" not in augment:
        flips = np.zeros_like(flips)
    return Draws(corners[0], corners[1], flips)


def apply(images: torch.Tensor, draws: Draws, padding: int = PADDING) -> torch.Tensor:
    """Pad by zeros, crop to the old size, mirror: images (n, channels, height, width) of any type, on any device.

    On bytes, before normalisation, the border is black; on normalised images it is the mean: as in torchvision.
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
