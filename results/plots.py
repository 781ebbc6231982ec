"""The plots of the page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raybcgd.report.style import draw_curve, drawing, line_styles, log_scale, mark_target, percentage
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


def target_plot(store: Store, labels: dict[str, str], target: float, path: Path) -> None:
    """Plot accuracy against upload for the methods in `labels`, which maps them to the text of the legend."""
    with drawing() as new:
        figure = new(7.6, 4.0)
        axes = figure.subplots()
        axes.set_xlabel("upload per client, in units of the model size d")
        axes.set_ylabel("test accuracy, %")
        shown = _curves(axes, store, tuple(labels), "upload_d", labels)
        log_scale(axes.xaxis, shown, most=9)
        mark_target([axes], target)
        axes.legend(title=f"first reaches {percentage(target)} after", loc="lower right", fontsize=9)
        figure.savefig(path, dpi=110)


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


def _curves(
    axes: Any, store: Store, labels: tuple[str, ...], x: str, texts: Mapping[str, str] | None = None
) -> list[float]:
    """Plot the methods that have runs. Return all values on the x axis."""
    shown: list[float] = []
    for label, style in line_styles(labels).items():
        curves = [run["curve"] for run in store.of("final", label) if "curve" in run]
        if curves:
            percent = [(curve[x], [100 * value for value in curve["accuracy"]]) for curve in curves]
            draw_curve(axes, percent, (texts or {}).get(label, label), style)
            shown += curves[0][x]
    return shown
