"""Parquet files train-*.parquet and test-*.parquet: images in the Hugging Face layout, tables or token sequences."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raybcgd.data.clients import Clients, clients_from_ids
from raybcgd.data.dataset import Columns, Dataset
from raybcgd.data.images import Encoded, EncodedSplit, decode_dataset
from raybcgd.data.settings import DataConfig
from raybcgd.data.tabular import (
    feature_columns,
    is_index,
    is_number,
    joined,
    note_client_ids,
    note_unused,
    numeric_columns,
    read_features,
    tabular_dataset,
)
from raybcgd.errors import ConfigError, first_line

TEST_NAMES = ("test", "validation", "valid", "val")
IMAGE_COLUMNS = ("image", "img", "picture")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "class", "character")
ROWS_PER_READ = 2048


def load_parquet(root: Path, config: DataConfig, name: str) -> Dataset:
    """Load a folder of Parquet files: images as bytes, columns of numbers, or sequences of tokens."""
    files = find_files(root)
    if _has_images(files[0][0], config):
        (train, declared, columns), (test, *_) = (_split(paths, config) for paths in files)
        dataset = decode_dataset(name, train, test, config.image_size, config.classes or declared)
    else:
        if config.image_size is not None:
            raise ConfigError("data.image_size has no effect with Parquet files without images; remove it")
        inputs, targets, columns = _table(files[0], config)
        test_inputs, test_targets, _ = _table(files[1], config, (files[0][0], columns))
        dataset = tabular_dataset(name, (inputs, targets), (test_inputs, test_targets), config.classes)
        if config.feature_columns is None:
            note_client_ids(columns.inputs)
            note_unused(pq.ParquetFile(files[0][0]).schema_arrow, columns, config.client_column)
    clients = None if config.client_column is None else _clients(files[0], config.client_column)
    return replace(dataset, columns=columns, clients=clients)


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


def _has_images(path: Path, config: DataConfig) -> bool:
    """Return whether the inputs are images. With neither bytes nor numbers, assume images."""
    with _reading(path):
        schema = pq.ParquetFile(path).schema_arrow
    if config.feature_columns is not None or config.image_column is not None:
        return config.feature_columns is None
    others = [config.label_column or next((name for name in LABEL_COLUMNS if name in schema.names), None)]
    return any(_holds_bytes(field.type) for field in schema) or not numeric_columns(
        schema, [*others, config.client_column]
    )


def _table(
    paths: list[Path], config: DataConfig, first: tuple[Path, Columns] | None = None
) -> tuple[Any, Any, Columns]:
    """Read the features and the targets of a split. Also return the columns, which are those of the `first` file."""
    inputs, targets = [], []
    for path in paths:
        with _reading(path):
            file = pq.ParquetFile(path)
            if first is not None:
                _check_same(path, file.schema_arrow, *first)
            label = _label_column(path, file.schema_arrow, config)
            wanted = config.feature_columns if first is None else first[1].inputs
            columns = feature_columns(path, file.schema_arrow, wanted, (label, config.client_column))
            first = first or (path, Columns(label, tuple(columns)))
            table = file.read(columns=[*columns, label])
        targets.append(_targets(table.column(label), label, path, config))
        inputs.append(read_features(table.select(columns), path))
    assert first is not None
    if not any(map(len, targets)):
        raise ConfigError(f"data.root: {paths[0]} has no rows; add at least one sample")
    return joined(inputs, first[1].inputs), np.concatenate(targets), first[1]


def _check_same(path: Path, schema: Any, first: Path, columns: Columns) -> None:
    """Raise an error if a file lacks columns that were read from the first one."""
    missing = [name for name in (columns.label, *columns.inputs) if name not in schema.names]
    if missing:
        names = ", ".join(f'"{name}"' for name in missing)
        choose = "" if columns.label in missing else ", or set data.feature_columns to those in all of them"
        raise ConfigError(
            f"data.root: {path} lacks columns that {first} has: {names}; write the same columns to all files{choose}"
        )


def _label_column(path: Path, schema: Any, config: DataConfig) -> str:
    """Return the column of the targets: integers, or any numbers for regression."""
    regression = config.task == "regression"
    fits = is_number if regression else pa.types.is_integer
    fitting = [field.name for field in schema if fits(field.type) and not is_index(field.name)]
    fitting = [name for name in fitting if name != config.client_column]
    unfit = config.label_column is None and any(name in schema.names for name in LABEL_COLUMNS)
    if not fitting or (unfit and not any(name in fitting for name in LABEL_COLUMNS)):
        kind = "numbers to use as targets" if regression else "integers to use as labels"
        floats = any(is_number(field.type) for field in schema if field.name in LABEL_COLUMNS)
        task = ', or set data.task = "regression"' if floats else ""
        fix = "add them" if regression else f"write the labels as integers 0, 1, …{task}"
        raise ConfigError(
            f"data.label_column: found no {kind} in {path}, which has {_listed(schema, LABEL_COLUMNS)}; {fix}, or name "
            "their column"
        )
    content = "numbers" if regression else "integers"
    if config.label_column in schema.names and not fits(kind := schema.field(config.label_column).type):
        wanted, task = ("numbers", "") if regression else ("integers 0, 1, …", ' set data.task = "regression",')
        raise ConfigError(
            f"data.label_column: {config.label_column} holds {_content(kind)}; encode them as {wanted} in the file,"
            f"{task if is_number(kind) else ''} or name another column ({content}: {', '.join(fitting)})"
        )
    return _choose("label", config.label_column, fitting, LABEL_COLUMNS, f"{content} in {path}")


def _content(kind: Any) -> str:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return "strings" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else f"values of type {kind}"


def _targets(column: Any, label: str, path: Path, config: DataConfig) -> Any:
    if column.null_count:
        raise ConfigError(f"data.label_column: column {label!r} of {path} has rows without a label; remove them")
    return column.to_numpy().astype(np.float32 if config.task == "regression" else np.int64)


def _split(paths: list[Path], config: DataConfig) -> tuple[EncodedSplit, int | None, Columns]:
    """Open the files of a split of images and read their labels. Also return the declared classes and the columns."""
    images, labels, declared, columns = [], [], None, Columns("", ())
    for path in paths:
        with _reading(path):
            file = pq.ParquetFile(path)
            schema = file.schema_arrow
            with_bytes = [field.name for field in schema if _holds_bytes(field.type)]
            if not with_bytes:
                raise ConfigError(
                    f"data.image_column: no column of {path} has image files as bytes, only {_listed(schema)}; embed "
                    "the images, for example with `raybcgd data pack`, or use columns of numbers"
                )
            image = _choose("image", config.image_column, with_bytes, IMAGE_COLUMNS, f"image bytes in {path}")
            label = _label_column(path, schema, config)
            column = file.read(columns=[label]).column(label)
        images.append(_images(path, file, image))
        columns = Columns(label, (image,))
        labels.append(_targets(column, label, path, config))
        declared = declared or _declared_classes(schema, label)
    targets = np.concatenate(labels)
    if len(targets) == 0:
        raise ConfigError(f"data.root: {paths[0]} has no rows; add at least one image")
    return EncodedSplit(chain.from_iterable(images), targets), declared, columns


def _listed(schema: Any, first: Sequence[str] = ()) -> str:
    """Return the columns and their types, as many as fit on a line, those in `first` before the others."""
    fields = sorted(schema, key=lambda field: field.name not in first)
    columns = ", ".join(f"{field.name} ({field.type})" for field in fields)
    return columns if len(columns) < 200 else f"{columns[:200]}…"


def _choose(what: str, wanted: str | None, fitting: list[str], usual: tuple[str, ...], content: str) -> str:
    known = [name for name in usual if name in fitting]
    if wanted is None and (known or len(fitting) == 1):
        return (known or fitting)[0]
    if wanted not in fitting:
        use = f"{fitting[0]}, which has" if len(fitting) == 1 else f"one of {', '.join(fitting)}, which have"
        raise ConfigError(f"data.{what}_column is {wanted or 'not set'}; use {use} {content}")
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


def _clients(paths: list[Path], column: str) -> Clients:
    """Read the client ids of the training samples."""
    ids = []
    for path in paths:
        with _reading(path):
            file = pq.ParquetFile(path)
            if column not in file.schema_arrow.names:
                names = ", ".join(file.schema_arrow.names)
                raise ConfigError(f'data.client_column = "{column}" is not a column of {path}; use one of {names}')
            found = file.read(columns=[column]).column(column)
        if pa.types.is_dictionary(found.type):
            found = found.cast(found.type.value_type)
        integers = pa.types.is_integer(found.type)
        if not (integers or pa.types.is_string(found.type) or pa.types.is_large_string(found.type)):
            raise ConfigError(f'data.client_column = "{column}" of {path} has {found.type}; use integers or strings')
        if found.null_count:
            raise ConfigError(f'data.client_column = "{column}" of {path} has rows without a client; remove them')
        ids.append(found.to_numpy().astype(np.int64 if integers else str))
    everyone = np.concatenate(ids)
    return clients_from_ids(everyone, len(everyone), f'data.client_column = "{column}"')


def _declared_classes(schema: Any, label: str) -> int | None:
    """Return the number of class names in the metadata of the `datasets` library, if the file has any."""
    try:
        metadata = json.loads((schema.metadata or {})[b"huggingface"])
        return len(metadata["info"]["features"][label]["names"]) or None
    except (KeyError, TypeError, ValueError):
        return None
