"""Image folders: one sub-folder per class, or Tiny ImageNet's layout."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raybcgd.data.dataset import Dataset, Labels, Split, channel_statistics
from raybcgd.data.images import Encoded, same_channels, stack
from raybcgd.data.split import hold_out
from raybcgd.errors import ConfigError, first_line

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
TEST_FOLDERS = ("test", "val", "valid", "validation")


class Files(NamedTuple):
    """The image files of a split and their labels."""

    paths: list[Path]
    labels: Labels


class Listing(NamedTuple):
    """The class names in label order, and the files of both splits."""

    names: list[str]
    train: Files
    test: Files


def load_listing(listing: Listing, name: str, image_size: int | None, classes: int | None = None) -> Dataset:
    """Decode all images of a listing."""
    parts = [stack(read_files(files.paths), len(files.paths), image_size) for files in (listing.train, listing.test)]
    train, test = same_channels(*parts)
    mean, std = channel_statistics(train, 255.0)
    splits = Split(train, listing.train.labels), Split(test, listing.test.labels)
    return Dataset(name, *splits, classes or max(len(listing.names), 2), 255.0, mean, std)


def list_image_folder(root: Path) -> Listing:
    """List root/train/<class>/* and root/test/<class>/* (or val, valid, validation), or just root/<class>/*.

    Labels number the class names in alphabetical order. In the second layout, every fifth image of each class, in
    file name order, is test data.
    """
    _check_folder(root)
    if (root / "train").is_dir():
        names = _class_names(root / "train")
        test_folder = next((root / t for t in TEST_FOLDERS if (root / t).is_dir()), None)
        if test_folder is None:
            raise ConfigError(f"data.root: {root} has train/ but no test/ (or val/) folder; add one")
        unknown = sorted(set(_class_names(test_folder)) - set(names))
        if unknown:
            raise ConfigError(
                f"data.root: the class {test_folder / unknown[0]} is missing in train/; add it there or remove it"
            )
        return Listing(names, _class_files(root / "train", names), _class_files(test_folder, names))
    names = _class_names(root)
    paths, labels = _class_files(root, names)
    train, test = hold_out(labels)
    if len(test) == 0:
        raise ConfigError(f"data.root: no class of {root} has the 5 images that a test split needs; add some")
    pick = np.array(paths, dtype=object)
    return Listing(names, Files(list(pick[train]), labels[train]), Files(list(pick[test]), labels[test]))


def list_tiny_imagenet(root: Path) -> Listing:
    """List train/<wnid>/images/*.JPEG and val/images/*.JPEG, with the classes in val/val_annotations.txt.

    The published test folder has no labels, so the validation split is the test data, as is usual.
    """
    _check_folder(root)
    if not (root / "train").is_dir():
        raise ConfigError(f"data.root: {root} has no train/ folder; point it to the unpacked tiny-imagenet-200")
    names = _class_names(root / "train")
    train = _class_files(root / "train", names, inside="images")
    annotations = root / "val" / "val_annotations.txt"
    try:
        lines = annotations.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"data.root: cannot read {annotations} ({first_line(error)}); point it to the unpacked tiny-imagenet-200"
        ) from error
    label_of = {name: label for label, name in enumerate(names)}
    paths, labels = [], []
    for number, line in enumerate(lines, 1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in label_of:
            raise ConfigError(
                f"data.root: line {number} of {annotations} names no class of train/; unpack tiny-imagenet-200 again"
            )
        paths.append(root / "val" / "images" / fields[0])
        labels.append(label_of[fields[1]])
    if not paths:
        raise ConfigError(f"data.root: {annotations} is empty; unpack tiny-imagenet-200 again")
    return Listing(names, train, Files(paths, np.array(labels, dtype=np.int64)))


def read_files(paths: list[Path]) -> Iterator[Encoded]:
    """Yield the files' bytes one at a time."""
    for path in paths:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"data.root: cannot read {path} ({first_line(error)}); restore or remove it") from error
        yield Encoded(data, str(path))


def _check_folder(root: Path) -> None:
    if not root.is_dir():
        raise ConfigError(f"data.root: no such folder: {root}; point it to a folder of images")


def _class_names(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise ConfigError(f"data.root: {folder} has no class folders; put the images in one sub-folder per class")
    return names


def _class_files(folder: Path, names: list[str], inside: str = "") -> Files:
    """List the images class by class, sorted by name."""
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        found = sorted(path for path in (folder / name / inside).rglob("*") if path.suffix.lower() in SUFFIXES)
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise ConfigError(f"data.root: the class folders of {folder} hold no images; add JPEG or PNG files")
    return Files(paths, np.array(labels, dtype=np.int64))
