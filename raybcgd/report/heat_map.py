"""Heat map of the labels per client."""

from pathlib import Path

import numpy as np

from raybcgd.data.inspect import shown_clients
from raybcgd.data.partition import Ints
from raybcgd.errors import ConfigError


def draw_heat_map(counts: Ints, path: Path, title: str) -> None:
    """Write a PNG of `counts` (clients, classes): clients on the x axis, labels on the y axis, samples as colour."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("drawing needs matplotlib; pip install raybcgd[plots]") from error
    clients, classes = counts.shape
    shown = shown_clients(clients)
    figure = Figure(figsize=(min(4 + 0.12 * len(shown), 16), min(2 + 0.22 * classes, 10)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(counts[shown].T, aspect="auto", origin="lower", interpolation="nearest", cmap="viridis")
    figure.colorbar(image, ax=axes, label="samples")
    axes.set_xlabel("client" if len(shown) == clients else f"client ({len(shown)} of {clients:,}, evenly spaced)")
    axes.set_ylabel("label")
    axes.set_title(title)
    ticks = np.unique(np.linspace(0, len(shown) - 1, min(len(shown), 9)).round().astype(np.int64))
    axes.set_xticks(ticks.tolist(), [str(shown[t]) for t in ticks])
    if classes <= 30:
        axes.set_yticks(list(range(classes)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({error.strerror}); choose another file") from error
