"""Image folders: one sub-folder per class, or Tiny ImageNet's layout."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raybcgd.data.dataset import Dataset
from raybcgd.data.images import Encoded, EncodedSplit, decode_dataset
from raybcgd.data.split import hold_out
from raybcgd.errors import ConfigError, first_line

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
TEST_FOLDERS = ("test", "val", "valid", "validation")

Files = list[tuple[Path, int]]
"""Image files and their labels."""


class Listing(NamedTuple):
    """The class names in label order, and the files of both splits."""

    names: list[str]
    train: Files
    test: Files


def load_listing(listing: Listing, name: str, image_size: int | None, classes: int | None) -> Dataset:
    """Decode all images of a listing."""
    train, test = (
        EncodedSplit(read_files(files), np.array([label for _, label in files], dtype=np.int64))
        for files in (listing.train, listing.test)
    )
    return decode_dataset(name, train, test, image_size, classes or max(len(listing.names), 2))


def list_image_folder(root: Path) -> Listing:
    """List root/train/<class>/* and root/test/<class>/* (or val, valid, validation), or just root/<class>/*.

    Labels number the class names in alphabetical order. In the second layout, every fifth image of each class, in
    the order of file names, is test data.
    """
    if not (root / "train").is_dir():
        names = _class_names(root)
        files = _class_files(root, names)
        train, test = hold_out(np.array([label for _, label in files]))
        if len(test) == 0:
            raise ConfigError(f"data.root: no class in {root} has 5 images, the minimum for a test split; add images")
        return Listing(names, [files[i] for i in train], [files[i] for i in test])
    names = _class_names(root / "train")
    test_folder = next((root / name for name in TEST_FOLDERS if (root / name).is_dir()), None)
    if test_folder is None:
        raise ConfigError(f"data.root: {root} has train/ but no test/ (or val/) folder; add one")
    for name in _class_names(test_folder):
        if name not in names:
            raise ConfigError(f"data.root: the class {test_folder / name} is not in train/; add it there, or remove it")
    return Listing(names, _class_files(root / "train", names), _class_files(test_folder, names))


def list_tiny_imagenet(root: Path) -> Listing:
    """List train/<wnid>/images/*.JPEG and val/images/*.JPEG, with the classes in val/val_annotations.txt.

    The published test folder has no labels, so the validation split is used as test data.
    """
    names = _class_names(root / "train")
    annotations = root / "val" / "val_annotations.txt"
    try:
        lines = annotations.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot read {annotations} ({first_line(error)})"
        raise ConfigError(f"data.root: {problem}; point it to the unpacked tiny-imagenet-200") from error
    test = []
    for number, line in enumerate(lines, 1):
        file, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in names:
            raise ConfigError(f"data.root: line {number} of {annotations} names a class not in train/; unpack again")
        test.append((root / "val" / "images" / file, names.index(wnid)))
    if not test:
        raise ConfigError(f"data.root: {annotations} is empty; unpack tiny-imagenet-200 again")
    return Listing(names, _class_files(root / "train", names, "images"), test)


def read_files(files: Files) -> Iterator[Encoded]:
    """Yield the files' bytes one at a time."""
    for path, _ in files:
        try:
            yield Encoded(path.read_bytes(), str(path))
        except OSError as error:
            raise ConfigError(f"data.root: cannot read {path} ({first_line(error)}); restore or remove it") from error


def _class_names(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise ConfigError(f"data.root: no such folder: {folder}; point it to a folder of images")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise ConfigError(f"data.root: {folder} has no class folders; put the images in one sub-folder per class")
    return names


def _class_files(folder: Path, names: list[str], inside: str = "") -> Files:
    """List the images of each class, sorted by name."""
    files: Files = []
    for label, name in enumerate(names):
        paths = sorted((folder / name / inside).rglob("*"))
        files += [(path, label) for path in paths if path.suffix.lower() in SUFFIXES]
    if not files:
        raise ConfigError(f"data.root: the class folders in {folder} contain no images; add JPEG or PNG files")
    return files
