"""Parquet files in the Hugging Face image layout: image bytes and labels in train-*.parquet and test-*.parquet."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raybcgd.data.dataset import Dataset
from raybcgd.data.images import Encoded, EncodedSplit, decode_dataset
from raybcgd.errors import ConfigError, first_line

TEST_NAMES = ("test", "validation", "valid", "val")
IMAGE_COLUMNS = ("image", "img", "picture")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "class", "character")
ROWS_PER_READ = 2048


def load_parquet(
    root: Path,
    *,
    name: str,
    image_column: str | None,
    label_column: str | None,
    image_size: int | None,
    classes: int | None,
) -> Dataset:
    """Load all images of a folder of Parquet files as bytes."""
    train_files, test_files = find_files(root)
    train, declared_classes = _split(train_files, image_column, label_column)
    test, _ = _split(test_files, image_column, label_column)
    return decode_dataset(name, train, test, image_size, classes or declared_classes)


def has_parquet(root: Path) -> bool:
    """Return whether `root` has train-*.parquet files."""
    return any(_matching(folder, "train") for folder in (root, root / "data"))


def find_files(root: Path) -> tuple[list[Path], list[Path]]:
    """Return the train and test files, sorted by name, in `root` or in `root`/data as on the Hugging Face Hub."""
    if not root.is_dir():
        raise ConfigError(f"data.root: no such folder: {root}; point it to a folder with train-*.parquet files")
    if not has_parquet(root):
        raise ConfigError(f"data.root: {root} has no train-*.parquet files; point it to the folder with these files")
    folder = root if _matching(root, "train") else root / "data"
    for split in TEST_NAMES:
        if test := _matching(folder, split):
            return _matching(folder, "train"), test
    raise ConfigError(f"data.root: {folder} has no test-*.parquet (or validation-*.parquet) files; add them")


def _matching(folder: Path, split: str) -> list[Path]:
    return sorted([*folder.glob(f"{split}.parquet"), *folder.glob(f"{split}-*.parquet")])


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert pyarrow's errors to a ConfigError that names the file."""
    try:
        yield
    except ConfigError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: column names that are not UTF-8
        problem = f"cannot read {path} ({first_line(error)})"
        raise ConfigError(f"data.root: {problem}: truncated, corrupt or not Parquet; fetch it again") from error


def _split(paths: list[Path], image_column: str | None, label_column: str | None) -> tuple[EncodedSplit, int | None]:
    """Open the files of a split and read their labels. Also return the number of classes that they declare."""
    images, labels, declared = [], [], None
    for path in paths:
        with _reading(path):
            file = pq.ParquetFile(path)
            schema = file.schema_arrow
            with_bytes = [field.name for field in schema if _holds_bytes(field.type)]
            with_integers = [field.name for field in schema if pa.types.is_integer(field.type)]
            _check_columns(path, schema, with_bytes, with_integers)
            image = _choose("image", image_column, with_bytes, IMAGE_COLUMNS, f"image bytes in {path}")
            label = _choose("label", label_column, with_integers, LABEL_COLUMNS, f"integers in {path}")
            column = file.read(columns=[label]).column(label)
        if column.null_count:
            raise ConfigError(f"data.label_column: column {label!r} of {path} has rows without a label; remove them")
        images.append(_images(path, file, image))
        labels.append(column.to_numpy().astype(np.int64))
        declared = declared or _declared_classes(schema, label)
    targets = np.concatenate(labels)
    if len(targets) == 0:
        raise ConfigError(f"data.root: {paths[0]} has no rows; add at least one image")
    return EncodedSplit(chain.from_iterable(images), targets), declared


def _check_columns(path: Path, schema: Any, with_bytes: list[str], with_integers: list[str]) -> None:
    """Raise an error if a file has no images or no labels."""
    columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
    columns = columns if len(columns) < 200 else f"{columns[:200]}…"
    if not with_bytes:
        raise ConfigError(
            f"data.image_column: no column of {path} has image files as bytes, only {columns}; embed the images, for "
            "example with `raybcgd data pack`, or write a data.source for other samples"
        )
    if not with_integers:
        raise ConfigError(
            f"data.label_column: no column of {path} has integers, only {columns}; write the labels as integers 0, 1, …"
        )


def _choose(what: str, wanted: str | None, fitting: list[str], usual: tuple[str, ...], content: str) -> str:
    known = [name for name in usual if name in fitting]
    if wanted is None and (known or len(fitting) == 1):
        return (known or fitting)[0]
    if wanted not in fitting:
        raise ConfigError(f"data.{what}_column is {wanted or 'not set'}; use one of {fitting}, which have {content}")
    return wanted


def _holds_bytes(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _holds_bytes(kind.field("bytes").type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _images(path: Path, file: Any, column: str) -> Iterator[Encoded]:
    with _reading(path):
        row = 0
        for batch in file.iter_batches(batch_size=ROWS_PER_READ, columns=[column]):
            data = batch.column(column)
            if pa.types.is_struct(data.type):
                data = pc.struct_field(data, "bytes")
            for blob in data.to_pylist():
                if blob is None:
                    problem = f"row {row} of {path} has no image bytes in column {column!r}"
                    raise ConfigError(f"data.root: {problem}; write the file again with embedded bytes")
                yield Encoded(blob, f"row {row} of {path}")
                row += 1


def _declared_classes(schema: Any, label: str) -> int | None:
    """Return the number of class names in the metadata of the `datasets` library, if the file has any."""
    try:
        metadata = json.loads((schema.metadata or {})[b"huggingface"])
        return len(metadata["info"]["features"][label]["names"]) or None
    except (KeyError, TypeError, ValueError):
        return None
