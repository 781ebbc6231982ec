"""The plots of the page."""

from pathlib import Path
from typing import Any

from raybcgd.report.style import draw_curve, drawing, line_styles, log_scale
from results.numbers import target_of
from results.store import Store


def upload_plot(stores: dict[str, Store], labels: tuple[str, ...], path: Path) -> None:
    """Plot accuracy against upload, one panel per study by title. Bands are one standard deviation over seeds."""
    with drawing() as new:
        figure = new(9.0, 3.6)
        panels = figure.subplots(1, len(stores), sharey=True, squeeze=False)[0]
        for axes, (title, store) in zip(panels, stores.items(), strict=True):
            axes.set_title(title)
            axes.set_xlabel("upload per client, in d")
            shown = _curves(axes, store, labels, "upload_d")
            log_scale(axes.xaxis, shown)
            target = target_of(store)
            if target is not None:
                axes.axhline(100 * target, color="#777777", lw=0.8, ls=":")
        panels[0].set_ylabel("test accuracy, %")
        panels[0].legend(fontsize=7)
        figure.savefig(path, dpi=100)


def rounds_plot(store: Store, path: Path) -> None:
    """Plot accuracy against rounds for all variants of a study."""
    with drawing() as new:
        figure = new(6.4, 3.2)
        axes = figure.subplots()
        axes.set_xlabel("round")
        axes.set_ylabel("test accuracy, %")
        _curves(axes, store, tuple(store.labels()), "round")
        axes.legend(fontsize=8)
        figure.savefig(path, dpi=100)


def _curves(axes: Any, store: Store, labels: tuple[str, ...], x: str) -> list[float]:
    """Plot the methods that have runs. Return all values on the x axis."""
    shown: list[float] = []
    for label, style in line_styles(labels).items():
        curves = [run["curve"] for run in store.of("final", label) if "curve" in run]
        if curves:
            percent = [(curve[x], [100 * value for value in curve["accuracy"]]) for curve in curves]
            draw_curve(axes, percent, label, style)
            shown += curves[0][x]
    return shown
