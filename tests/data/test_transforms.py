"""Normalisation and augmentation match torchvision."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from raybcgd.data.augment import Draws, apply, draw
from raybcgd.data.normalise import normalise
from raybcgd.randomness import stream
from raybcgd.torchvision_ops import import_torchvision


@dataclass
class Constants:
    scale: float = 255.0
    mean: tuple[float, ...] = (0.49, 0.48, 0.45)
    std: tuple[float, ...] = (0.25, 0.24, 0.26)


def batch(n: int = 16, channels: int = 3, height: int = 10, width: int = 12) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (n, channels, height, width), dtype=np.uint8))


def torchvision_augment(images: torch.Tensor, draws: Draws, padding: int = 4) -> torch.Tensor:
    """Apply the draws as RandomCrop(size, padding) and RandomHorizontalFlip would, image by image."""
    functional = import_torchvision("transforms.v2.functional")
    height, width = images.shape[-2:]
    out = []
    for image, top, left, flip in zip(images, *draws, strict=True):
        padded = functional.pad(image, [padding] * 4)
        crop = functional.crop(padded, int(top), int(left), height, width)
        out.append(functional.horizontal_flip(crop) if flip else crop)
    return torch.stack(out)


def torchvision_normalise(images: torch.Tensor, constants: Constants) -> torch.Tensor:
    """Apply ToTensor and Normalize image by image."""
    transforms = import_torchvision("transforms")
    to_tensor, normalize = transforms.ToTensor(), transforms.Normalize(constants.mean, constants.std)
    return torch.stack([normalize(to_tensor(image.permute(1, 2, 0).numpy())) for image in images])


def test_normalisation_equals_torchvision_bit_for_bit() -> None:
    images = batch()
    assert torch.equal(normalise(images, Constants()), torchvision_normalise(images, Constants()))


def test_normalisation_agrees_with_torchvision_transforms_v2() -> None:
    functional = import_torchvision("transforms.v2.functional")
    images, constants = batch(), Constants()
    theirs = functional.normalize(
        functional.to_dtype(images, torch.float32, scale=True), list(constants.mean), list(constants.std)
    )
    torch.testing.assert_close(normalise(images, constants), theirs)


@pytest.mark.parametrize("augment", [("crop",), ("flip",), ("crop", "flip"), ()])
@pytest.mark.parametrize("channels", [1, 3])
def test_augmentation_equals_torchvision(augment: tuple[str, ...], channels: int) -> None:
    images = batch(64, channels)
    draws = draw(stream(0, "augment"), 64, augment)
    ours = apply(images, draws)
    assert torch.equal(ours, torchvision_augment(images, draws))
    assert torch.equal(ours, images) == (augment == ())


def test_augmentation_works_before_and_after_normalisation() -> None:
    images, constants = batch(32), Constants()
    draws = draw(stream(0, "augment"), 32, ("crop", "flip"))
    before = normalise(apply(images, draws), constants)
    after = apply(normalise(images, constants), draws)
    assert torch.equal(before, torchvision_normalise(torchvision_augment(images, draws), constants))
    assert torch.equal(after, torchvision_augment(torchvision_normalise(images, constants), draws))
    assert not torch.equal(before, after), "the border is black if augmented first, else the mean"


def test_draws_are_uniform_and_crop_and_flip_are_independent() -> None:
    both = draw(stream(0, "augment"), 20_000, ("crop", "flip"))
    crop, flip = draw(stream(0, "augment"), 20_000, ("crop",)), draw(stream(0, "augment"), 20_000, ("flip",))
    assert np.array_equal(both.tops, crop.tops)
    assert np.array_equal(both.flips, flip.flips)
    assert not crop.flips.any()
    assert set(flip.lefts) == {4}
    for corner in (both.tops, both.lefts):
        assert np.allclose(np.bincount(corner, minlength=9) / 20_000, 1 / 9, atol=0.01)
    assert both.flips.mean() == pytest.approx(0.5, abs=0.02)


def test_a_batch_is_augmented_as_part_of_the_whole_set() -> None:
    images = batch(32)
    draws = draw(stream(0, "augment"), 32, ("crop", "flip"))
    rows = np.array([5, 1, 30])
    assert torch.equal(apply(images[rows], draws.take(rows)), apply(images, draws)[rows])


def test_colour_images_are_returned_in_channels_last() -> None:
    images = normalise(batch(), Constants())
    assert images.is_contiguous(memory_format=torch.channels_last)
    augmented = apply(images, draw(stream(0, "a"), 16, ("crop",)))
    assert augmented.is_contiguous(memory_format=torch.channels_last)


def test_stacked_batches_are_normalised_identically() -> None:
    images = batch(16)
    stacked = normalise(images.view(4, 4, 3, 10, 12), Constants())
    assert torch.equal(stacked.view(16, 3, 10, 12), normalise(images, Constants()))


def test_inputs_are_not_modified() -> None:
    images = batch()
    kept = images.clone()
    normalise(images, Constants())
    apply(images, draw(stream(0, "a"), 16, ("crop", "flip")))
    assert torch.equal(images, kept)


def test_floats_are_unchanged_by_default() -> None:
    rows = torch.randn(5, 7, dtype=torch.float64)
    as_is = Constants(1.0, (0.0,), (1.0,))
    assert torch.equal(normalise(rows, as_is, torch.float64), rows)
    assert normalise(rows, as_is).dtype == torch.float32
    kept = rows.clone()
    normalise(rows, Constants(2.0, (0.5,), (1.0,)), torch.float64)
    assert torch.equal(rows, kept)


def test_importing_torchvision_twice_gives_the_same_module() -> None:
    assert import_torchvision("models") is import_torchvision("models")
