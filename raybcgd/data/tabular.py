"""Parquet files without images: columns of numbers, or one column of lists, such as token sequences."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raybcgd.data.dataset import Columns, Dataset
from raybcgd.errors import ConfigError

Inputs = npt.NDArray[Any]
CLIENT_IDS = (
    "client",
    "client_id",
    "user",
    "user_id",
    "writer_id",
    "patient_id",
    "device_id",
    "hospital",
    "hospital_id",
)
_INDEX = re.compile(r"__index_level_\d+__")
"""The column in which pandas stores the row numbers of a filtered or shuffled table. They can give away the labels."""
log = logging.getLogger(__name__)


def numeric_columns(schema: Any, others: Sequence[str | None]) -> list[str]:
    """Return the first column of lists, or all columns of numbers if there is none. Skip `others` and pandas' index."""
    fields = [field for field in schema if field.name not in others and not is_index(field.name)]
    lists = [field.name for field in fields if _is_list(field.type)]
    return lists[:1] or [field.name for field in fields if is_number(field.type)]


def feature_columns(path: Path, schema: Any, wanted: Sequence[str] | None, others: Sequence[str | None]) -> list[str]:
    """Return the columns of the inputs: the wanted ones, checked, or those of `numeric_columns`.

    `others` are the columns of the targets and the clients.
    """
    columns = numeric_columns(schema, others) if wanted is None else list(wanted)
    if not columns:
        raise ConfigError(f"data.feature_columns: {path} has no columns of numbers except the targets; add features")
    for name in columns:
        if name not in schema.names or name in others:
            use = _usable(schema, others)
            raise ConfigError(f'data.feature_columns: "{name}" is not a feature column of {path}; use {use}')
        kind = schema.field(name).type
        if not (is_number(kind) or (_is_list(kind) and len(columns) == 1)):
            raise ConfigError(
                f'data.feature_columns: "{name}" of {path} has {kind}; use columns of numbers, or one column of lists '
                "of numbers"
            )
    return columns


def _usable(schema: Any, others: Sequence[str | None]) -> str:
    """Return the columns that can be features, as text."""
    fields = [field for field in schema if field.name not in others and not is_index(field.name)]
    numbers, lists = ([field.name for field in fields if fits(field.type)] for fits in (is_number, _is_list))
    choices = {"some of": numbers, "one of": lists}
    known = [f"{how} {', '.join(names)}" for how, names in choices.items() if names]
    return " or ".join(known) or "columns of numbers"


def note_client_ids(columns: Sequence[str]) -> None:
    """Log a note for each detected feature column that is named like a client id."""
    for name in columns:
        if name.lower() in CLIENT_IDS:
            log.warning(
                "note: column %s is used as a feature; set data.client_column if it names the clients, or "
                "data.feature_columns to leave it out",
                name,
            )


def note_unused(schema: Any, columns: Columns, client_column: str | None) -> None:
    """Log a note if the detected features leave columns out, such as strings. Pandas' index needs no note."""
    used = {*columns.inputs, columns.label, client_column}
    unused = [f"{field.name} ({field.type})" for field in schema if field.name not in used and not is_index(field.name)]
    if unused:
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        log.warning("note: columns that are not used as features: %s%s", ", ".join(unused[:3]), more)


def is_index(name: str) -> bool:
    """Return whether a column is the index of a pandas table, which is neither a feature nor a target."""
    return _INDEX.fullmatch(name) is not None


def is_number(kind: Any) -> bool:
    """Return whether a column's type is a number or a boolean."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_list(kind: Any) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return lists and is_number(kind.value_type)


def read_features(table: Any, path: Path) -> Inputs:
    """Return the inputs of a table: (rows, columns), or lists padded with 0 to the longest one."""
    for name in table.column_names:
        if table.column(name).null_count:
            raise ConfigError(f'data.feature_columns: "{name}" of {path} has rows without a value; fill or remove them')
    if len(table.column_names) == 1 and _is_list(table.schema[0].type):
        return _padded(table.column(0).combine_chunks(), table.column_names[0], path)
    columns = [table.column(name).to_numpy().astype(np.float32) for name in table.column_names]
    return np.stack(columns, axis=1) if columns else np.empty((len(table), 0), np.float32)


def _padded(lists: Any, name: str, path: Path) -> Inputs:
    values = lists.flatten()
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    tokens = pa.types.is_integer(values.type)
    if values.null_count or len(lengths) == 0 or lengths.max() == 0:
        raise ConfigError(f'data.feature_columns: "{name}" of {path} has missing values or only empty lists; fill them')
    if not tokens and lengths.min() < lengths.max():
        problem = f"lists of {lengths.min()} to {lengths.max()} numbers"
        raise ConfigError(f'data.feature_columns: "{name}" of {path} has {problem}; use lists of one length')
    padded = np.zeros((len(lengths), lengths.max()), dtype=np.int64 if tokens else np.float32)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = values.to_numpy(zero_copy_only=False)
    return padded


def joined(parts: Sequence[Inputs], columns: Sequence[str]) -> Inputs:
    """Return the inputs of several files as one array. Token sequences get the same length."""
    widths = {part.shape[1] for part in parts}
    if len(widths) > 1 and parts[0].dtype != np.int64:
        raise ConfigError(
            f'data.feature_columns: "{columns[0]}" has lists of {min(widths)} to {max(widths)} numbers in different '
            "files; use lists of one length"
        )
    return np.concatenate(_same_length(parts))


def _same_length(parts: Sequence[Inputs]) -> list[Inputs]:
    longest = max(part.shape[1] for part in parts)
    return [np.pad(part, ((0, 0), (0, longest - part.shape[1]))) for part in parts]


def tabular_dataset(name: str, train: tuple[Inputs, Any], test: tuple[Inputs, Any], classes: int | None) -> Dataset:
    """Return the data set. Features are normalised one by one; sequences of both splits get the same length."""
    inputs = [train[0], test[0]]
    if inputs[0].dtype == np.int64:
        inputs = _same_length(inputs)
        return Dataset.from_tensors(inputs[0], train[1], inputs[1], test[1], classes=classes, name=name)
    mean, std = _statistics(inputs[0])
    return Dataset.from_tensors(inputs[0], train[1], inputs[1], test[1], classes=classes, name=name, mean=mean, std=std)


def _statistics(features: Inputs) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and deviation of each feature, rounded, so that they are the same on every machine."""
    if not np.isfinite(features).all():
        return (0.0,), (1.0,)  # the data set refuses such features
    mean, std = features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64)
    # A constant feature is only centred.
    return tuple(float(f"{m:.6g}") for m in mean), tuple(float(f"{s:.6g}") or 1.0 for s in std)
