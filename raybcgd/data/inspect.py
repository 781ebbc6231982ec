"""What a data set and its partition look like, in a few lines and in a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raybcgd.data.dataset import Dataset, Labels
from raybcgd.data.partition import Ints, Partition
from raybcgd.errors import ConfigError

MOST_CLIENTS_DRAWN = 200


class Line(NamedTuple):
    """A row of the table: what, and how much."""

    what: str
    value: str


def describe(dataset: Dataset) -> list[Line]:
    """Sizes, shapes, classes and constants of a data set."""
    inputs = dataset.train.inputs
    megabytes = (inputs.nbytes + dataset.test.inputs.nbytes) / 1e6
    counts = np.bincount(dataset.train.targets, minlength=dataset.classes)
    return [
        Line("data set", dataset.name),
        Line("train samples", f"{len(dataset.train):,}"),
        Line("test samples", f"{len(dataset.test):,}"),
        Line("sample", f"{' x '.join(map(str, inputs.shape[1:]))} {inputs.dtype}"),
        Line("in memory", f"{megabytes:,.1f} MB"),
        Line("classes", str(dataset.classes)),
        Line("train samples a class", _spread(counts)),
        Line("scale, mean, std", f"{dataset.scale:g}, {_short(dataset.mean)}, {_short(dataset.std)}"),
    ]


def describe_partition(targets: Labels, classes: int, partition: Partition) -> list[Line]:
    """Client sizes and how unlike the clients' labels are."""
    counts = label_counts(targets, classes, partition)
    return [
        Line("clients", f"{len(partition):,}"),
        Line("samples dealt", f"{len(partition.indices):,} of {len(targets):,}"),
        Line("samples a client", _spread(partition.sizes)),
        Line("labels a client", _spread((counts > 0).sum(axis=1))),
        Line(
            "largest label's share of a client",
            f"{float((counts.max(axis=1) / counts.sum(axis=1)).mean()):.0%} on average",
        ),
        Line("distance from iid", f"{distance_from_iid(counts):.2f} (0: iid, 1: no label in common)"),
    ]


def label_counts(targets: Labels, classes: int, partition: Partition) -> Ints:
    """How many samples of each label each client has: (clients, classes)."""
    client = np.repeat(np.arange(len(partition)), partition.sizes)
    cells = client * classes + targets[partition.indices]
    return np.bincount(cells, minlength=len(partition) * classes).reshape(len(partition), classes)


def distance_from_iid(counts: Ints) -> float:
    """Mean total-variation distance between a client's label shares and everybody's, as a share of the largest one
    possible with these labels, which a client of only the rarest label would have."""
    own = counts / counts.sum(axis=1, keepdims=True)
    everyone = counts.sum(axis=0) / counts.sum()
    largest = 1 - everyone[everyone > 0].min()
    return float(np.abs(own - everyone).sum(axis=1).mean() / 2 / largest) if largest > 0 else 0.0


def draw_heat_map(counts: Ints, path: Path, title: str = "") -> None:
    """Write a PNG: clients across, labels up, the number of samples as the shade.

    Of more than 200 clients, 200 evenly spaced ones are drawn, and the axis says so.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("drawing needs matplotlib; pip install raybcgd[plots]") from error
    clients, classes = counts.shape
    shown = np.unique(np.linspace(0, clients - 1, min(clients, MOST_CLIENTS_DRAWN)).round().astype(np.int64))
    figure = Figure(figsize=(min(4 + 0.12 * len(shown), 16), min(2 + 0.22 * classes, 10)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(counts[shown].T, aspect="auto", origin="lower", interpolation="nearest", cmap="viridis")
    figure.colorbar(image, ax=axes, label="samples")
    axes.set_xlabel("client" if len(shown) == clients else f"{len(shown)} of {clients:,} clients, evenly spaced")
    axes.set_ylabel("label")
    axes.set_title(title or "Labels by client")
    ticks = np.unique(np.linspace(0, len(shown) - 1, min(len(shown), 9)).round().astype(np.int64))
    axes.set_xticks(ticks.tolist(), [str(shown[t]) for t in ticks])
    if classes <= 30:
        axes.set_yticks(list(range(classes)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({error.strerror}); choose another file") from error


def _spread(values: Ints) -> str:
    low, mean, high = int(values.min()), float(values.mean()), int(values.max())
    return f"{low:,} each" if low == high else f"{low:,} to {high:,}, {mean:,.1f} on average"


def _short(values: Sequence[float]) -> str:
    text = ", ".join(f"{value:.4g}" for value in values)
    return text if len(values) == 1 else f"({text})"
