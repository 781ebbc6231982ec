"""Parquet files in the Hugging Face image layout: image bytes and labels in train-*.parquet and test-*.parquet."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raybcgd.data.dataset import Dataset, Labels, Split, channel_statistics, infer_classes
from raybcgd.data.images import Bytes, Encoded, same_channels, stack
from raybcgd.errors import ConfigError, first_line

TEST_NAMES = ("test", "validation", "valid", "val")
IMAGE_COLUMNS = ("image", "img", "picture")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "class", "character")
ROWS_PER_READ = 2048
UNREADABLE = (pa.ArrowException, OSError, ValueError)  # ValueError: column names that are not UTF-8


def load_parquet(
    root: Path,
    *,
    name: str = "parquet",
    image_column: str | None = None,
    label_column: str | None = None,
    image_size: int | None = None,
    classes: int | None = None,
) -> Dataset:
    """Load all images of a folder of Parquet files as bytes."""
    train_files, test_files = find_files(root)
    columns = (image_column, label_column)
    train_images, train_labels = _read(train_files, columns, image_size, "train")
    test_images, test_labels = _read(test_files, columns, image_size, "test")
    train_images, test_images = same_channels(train_images, test_images)
    if classes is None:
        classes = _declared_classes(train_files[0], label_column) or infer_classes(train_labels, name)
    mean, std = channel_statistics(train_images, 255.0)
    train, test = Split(train_images, train_labels), Split(test_images, test_labels)
    return Dataset(name, train, test, classes, 255.0, mean, std)


def has_parquet(root: Path) -> bool:
    """Return whether `root` has train files in Parquet."""
    return any(_matching(folder, "train") for folder in (root, root / "data"))


def find_files(root: Path) -> tuple[list[Path], list[Path]]:
    """Return the train and test files, sorted by name, in `root` or in `root`/data as on the Hugging Face Hub."""
    if not root.is_dir():
        raise ConfigError(f"data.root: no such folder: {root}; point it to a folder with train-*.parquet files")
    folder = root if _matching(root, "train") else root / "data"
    train = _matching(folder, "train")
    if not train:
        raise ConfigError(f"data.root: {root} has no train-*.parquet files; point it to the folder with these files")
    for split in TEST_NAMES:
        if test := _matching(folder, split):
            return train, test
    raise ConfigError(f"data.root: {folder} has no test-*.parquet (or validation-*.parquet) files; add them")


def _matching(folder: Path, split: str) -> list[Path]:
    pattern = re.compile(rf"{split}(-.*)?\.parquet")
    return sorted(path for path in folder.glob(f"{split}*.parquet") if pattern.fullmatch(path.name))


def _open(path: Path) -> Any:
    try:
        return pq.ParquetFile(path)
    except UNREADABLE as error:
        raise ConfigError(
            f"data.root: cannot read {path} ({first_line(error)}); it is truncated or not Parquet, fetch it again"
        ) from error


def _read(
    paths: list[Path], columns: tuple[str | None, str | None], image_size: int | None, split: str
) -> tuple[Bytes, Labels]:
    files = [(path, _open(path)) for path in paths]
    count = sum(file.metadata.num_rows for _, file in files)
    if count == 0:
        raise ConfigError(f"data.root: the {split} files ({paths[0]}) have no rows; add at least one image")
    labels: list[Labels] = []
    images = stack(_images(files, columns, labels), count, image_size)
    return images, np.concatenate(labels)


def _images(
    files: list[tuple[Path, Any]], columns: tuple[str | None, str | None], labels: list[Labels]
) -> Iterator[Encoded]:
    """Yield the images one at a time, and append the labels to `labels` batch by batch."""
    for path, opened in files:
        file = str(path)
        image_column, label_column = _columns(opened.schema_arrow, columns, path)
        row = 0
        for batch in _batches(opened, [image_column, label_column], path):
            labels.append(_labels(batch.column(label_column), label_column, path))
            data = batch.column(image_column)
            if pa.types.is_struct(data.type):
                data = pc.struct_field(data, "bytes")
            for blob in data.to_pylist():
                if blob is None:
                    raise ConfigError(
                        f"data.root: row {row} of {path} has no image bytes in column {image_column!r}; "
                        f"write the file with the bytes embedded"
                    )
                yield Encoded(blob, file, row)
                row += 1


def _batches(file: Any, columns: list[str], path: Path) -> Iterator[Any]:
    try:
        yield from file.iter_batches(batch_size=ROWS_PER_READ, columns=columns)
    except UNREADABLE as error:
        raise ConfigError(
            f"data.root: cannot read {path} ({first_line(error)}); it is corrupt, fetch it again"
        ) from error


def _labels(column: Any, name: str, path: Path) -> Labels:
    if column.null_count:
        raise ConfigError(f"data.label_column: column {name!r} of {path} has rows without a label; remove these rows")
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def _columns(schema: Any, wanted: tuple[str | None, str | None], path: Path) -> tuple[str, str]:
    """Return the image and label columns: those configured, those with a usual name, or the only ones of that type."""
    images = [field.name for field in schema if _holds_bytes(field.type)]
    labels = [field.name for field in schema if pa.types.is_integer(field.type)]
    return (
        _choose("image", wanted[0], images, IMAGE_COLUMNS, schema.names, path),
        _choose("label", wanted[1], labels, LABEL_COLUMNS, schema.names, path),
    )


def _choose(
    what: str, wanted: str | None, fitting: list[str], usual: tuple[str, ...], names: list[str], path: Path
) -> str:
    content = "image bytes" if what == "image" else "integers"
    if wanted is not None:
        if wanted in fitting:
            return wanted
        problem = f"does not hold {content}" if wanted in names else "does not exist"
        raise ConfigError(f"data.{what}_column: column {wanted!r} {problem} in {path}; use one of {fitting or names}")
    if not fitting:
        raise ConfigError(f"data.{what}_column: no column of {names} holds {content} in {path}; add one")
    found = next((name for name in usual if name in fitting), fitting[0] if len(fitting) == 1 else None)
    if found is None:
        raise ConfigError(f"data.{what}_column: {path} has {content} in {fitting}; set it to one of them")
    return found


def _holds_bytes(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _holds_bytes(kind.field("bytes").type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _declared_classes(path: Path, label_column: str | None) -> int | None:
    """Return the number of class names in the metadata of the `datasets` library, if the file has any."""
    schema = _open(path).schema_arrow
    label = _columns(schema, (None, label_column), path)[1]
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return len(features[label]["names"]) or None
    except (KeyError, TypeError, ValueError):
        return None
