"""Describe a data set and its partition."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raybcgd.data.dataset import Dataset, Labels
from raybcgd.data.partition import Ints, Partition


class Line(NamedTuple):
    """A table row: name and value."""

    what: str
    value: str


def describe(dataset: Dataset) -> list[Line]:
    """Return sizes, shapes, classes and normalisation constants of a data set."""
    inputs = dataset.train.inputs
    megabytes = (inputs.nbytes + dataset.test.inputs.nbytes) / 1e6
    return [
        Line("data set", dataset.name),
        Line("training samples", f"{len(dataset.train):,}"),
        Line("test samples", f"{len(dataset.test):,}"),
        Line("sample", f"{' x '.join(map(str, inputs.shape[1:]))} {'tokens' if dataset.tokens else inputs.dtype}"),
        Line("in memory", f"{megabytes:,.1f} MB"),
        *_columns(dataset),
        *_targets(dataset),
        *_constants(dataset),
        *([] if dataset.clients is None else [Line("own clients", _some(dataset.clients.names))]),
    ]


def _columns(dataset: Dataset) -> list[Line]:
    if dataset.columns is None:
        return []
    inputs = "image column" if dataset.train.inputs.ndim == 4 else "feature columns"
    return [Line("label column", dataset.columns.label), Line(inputs, _some(dataset.columns.inputs))]


def _targets(dataset: Dataset) -> list[Line]:
    targets = dataset.train.targets
    if dataset.regression:
        spread = f"{targets.min():.4g} to {targets.max():.4g}, {targets.mean():.4g} on average"
        return [Line("targets", f"numbers, for regression: {spread}")]
    counts = np.bincount(targets, minlength=dataset.classes)
    return [Line("classes", str(dataset.classes)), Line("training samples per class", _spread(counts))]


def _constants(dataset: Dataset) -> list[Line]:
    inputs = dataset.train.inputs
    if dataset.tokens:
        return [Line("largest token", f"{inputs.max():,}")]
    if inputs.ndim == 2 and len(dataset.mean) > 1:
        return [Line("normalised", f"each of the {inputs.shape[1]:,} features, by its mean and deviation")]
    return [Line("scale, mean, std", f"{dataset.scale:g}, {_short(dataset.mean)}, {_short(dataset.std)}")]


def describe_partition(dataset: Dataset, partition: Partition) -> list[Line]:
    """Return the clients' sizes, and statistics of how much their labels differ."""
    counts = label_counts(dataset.labels, dataset.label_count, partition)
    label, labels = ("decile of targets", "deciles of targets") if dataset.regression else ("label", "labels")
    largest = float((counts.max(axis=1) / counts.sum(axis=1)).mean())
    return [
        Line("clients", f"{len(partition):,}"),
        Line("samples assigned", f"{len(partition.indices):,} of {len(dataset.train):,}"),
        Line("samples per client", _spread(partition.sizes)),
        Line(f"{labels} per client", _spread((counts > 0).sum(axis=1))),
        Line(f"share of a client's most frequent {label}", f"{largest:.0%} on average"),
        Line("distance from iid", f"{distance_from_iid(counts):.2f} (0: iid, 1: clients with only the rarest {label})"),
    ]


def label_counts(targets: Labels, classes: int, partition: Partition) -> Ints:
    """Return the number of samples per client and label: (clients, classes)."""
    client = np.repeat(np.arange(len(partition)), partition.sizes)
    cells = client * classes + targets[partition.indices]
    return np.bincount(cells, minlength=len(partition) * classes).reshape(len(partition), classes)


def shown_clients(clients: int, limit: int = 200) -> Ints:
    """Return the clients that a figure shows: all, or `limit` evenly spaced ones."""
    return np.linspace(0, clients - 1, min(clients, limit)).round().astype(np.int64)


def distance_from_iid(counts: Ints) -> float:
    """Return the mean total-variation distance between the clients' label shares and the overall shares.

    The result is relative to the largest possible distance, that of a client with only the rarest label.
    """
    own = counts / counts.sum(axis=1, keepdims=True)
    everyone = counts.sum(axis=0) / counts.sum()
    largest = 1 - everyone[everyone > 0].min()
    return float(np.abs(own - everyone).sum(axis=1).mean() / 2 / largest) if largest > 0 else 0.0


def _spread(values: Ints) -> str:
    low, mean, high = int(values.min()), float(values.mean()), int(values.max())
    return f"{low:,} each" if low == high else f"{low:,} to {high:,}, {mean:,.1f} on average"


def _some(names: Sequence[str]) -> str:
    rest = f", … ({len(names):,} in all)" if len(names) > 5 else ""
    return ", ".join(names[:5]) + rest


def _short(values: Sequence[float]) -> str:
    text = ", ".join(f"{value:.4g}" for value in values)
    return text if len(values) == 1 else f"({text})"
