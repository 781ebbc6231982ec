"""The style of all figures: colours, dashes, hatches, fonts, and the figure factory."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from itertools import chain, cycle
from typing import Any

import numpy as np

from raybcgd.errors import ConfigError

NewFigure = Callable[[float, float], Any]
"""Creates a figure from a width and a height in inches."""
Curve = tuple[Sequence[float], Sequence[float | None]]
"""The x and y values of one run."""

# Okabe and Ito's palette, whose colours colour-blind readers can tell apart, then most of Tol's muted palette. Dashes
# and hatches also distinguish runs.
_COLOURS = [
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#882255", "#999933", "#44AA99", "#332288", "#661100", "#AA4499", "#DDCC77"),
]
_DASHES = ["-", "--", "-.", ":"]
_DIVERGED = 10.0
"""Figures show losses up to this factor times the largest first loss."""
_DASH_OF = [0, 1, 2, 3, 0, 1, 2, 3, 3, 0, 1, 0, 2, 2]
"""Index into `_DASHES` for each colour. Colours that look similar, also to colour-blind readers, differ in dashes."""
_FIXED = ("FedAvg", "FedAvgM", "FedBCGD", "FedBCGD+", "SCAFFOLD", "FedProx", "FedAdam", "FedDC", "FedPVR")
"""Methods that look the same in every figure of every report."""
_LONGEST_LABEL = 36
BAND_ALPHA = 0.18
"""Opacity of a band of one standard deviation."""
HATCHES = (None, "////", "....", "\\\\\\\\", "xxxx")
STAGES = {
    "plan": ("#F0E442", "++++"),
    "broadcast": ("#56B4E9", "////"),
    "train": ("#0072B2", None),
    "aggregate": ("#009E73", "...."),
    "evaluate": ("#E69F00", "\\\\\\\\"),
    "checkpoint": ("#CC79A7", "xxxx"),
}
"""Colour and hatch of each stage of a round."""

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # keep text as text: searchable and small
    "svg.hashsalt": "raybcgd",  # makes the page reproducible
    "savefig.dpi": 130,
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.sans-serif": ["Arial", "Helvetica", "Liberation Sans", "DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#ececec",
    "axes.axisbelow": True,
    "axes.edgecolor": "#777777",
    "lines.linewidth": 1.8,
    "patch.force_edgecolor": True,
    "patch.edgecolor": "white",
    "patch.linewidth": 0.3,
    "hatch.linewidth": 0.4,
}


@contextmanager
def drawing() -> Iterator[NewFigure]:
    """Apply the shared settings and yield the figure factory."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("figures need matplotlib; pip install raybcgd[plots]") from None
    with matplotlib.rc_context(_SETTINGS):
        yield lambda width, height: Figure(figsize=(width, height))


def line_styles(labels: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the colour and the dashes of each method. Well-known methods always have the same ones."""
    labels = list(labels)
    colours = len(_COLOURS)
    count = colours * len(_DASHES)
    taken = {_FIXED.index(label) for label in labels if label in _FIXED}
    free = chain((k for k in range(count) if k not in taken), cycle(range(count)))
    places = {label: _FIXED.index(label) if label in _FIXED else next(free) for label in labels}
    return {
        label: {
            "color": _COLOURS[k % colours],
            "linestyle": _DASHES[(_DASH_OF[k % colours] + k // colours) % len(_DASHES)],
        }
        for label, k in places.items()
    }


def draw_curve(
    axes: Any, curves: Sequence[Curve], label: str, style: Mapping[str, str], above_lowest: bool = False
) -> None:
    """Plot a method's curve. With several seeds: the mean, and a band of one standard deviation.

    With `above_lowest`, the band does not extend below the lowest run, so that it fits on a logarithmic axis.
    """
    length = min(len(x) for x, _ in curves)
    x = np.mean([np.array(x[:length], dtype=float) for x, _ in curves], axis=0)
    y = np.array([np.array(y[:length], dtype=float) for _, y in curves])
    marker = {"marker": "o", "markersize": 4} if length == 1 else {}
    axes.plot(x, y.mean(axis=0), label=label, **style, **marker)
    if len(curves) > 1:
        mean, deviation = y.mean(axis=0), y.std(axis=0, ddof=1)
        low = np.maximum(mean - deviation, y.min(axis=0)) if above_lowest else mean - deviation
        axes.fill_between(x, low, mean + deviation, color=style["color"], alpha=BAND_ALPHA, linewidth=0)


def heat_map(axes: Any, table: Any, **options: Any) -> Any:
    """Draw a table as a heat map, with its first row at the bottom. NaN is hatched instead of coloured."""
    axes.grid(visible=False)
    axes.patch.set(facecolor="white", edgecolor="#999999", hatch="////")
    return axes.imshow(table, aspect="auto", origin="lower", interpolation="nearest", cmap="cividis", **options)


def mark_target(panels: Sequence[Any], target: float | None) -> None:
    """Fit the y axes, in percent, to the curves, and mark the target accuracy if there is one near them.

    The last panel labels the line.
    """
    low, high = panels[0].get_ylim()
    if target is not None and not low - (high - low) / 4 <= 100 * target <= high + (high - low) / 4:
        target = None
    if target is not None:
        margin = (high - low) / 20
        low, high = min(low, 100 * target - margin), max(high, 100 * target + margin)
    for axes in panels:
        axes.set_ylim(max(0, low), min(101, high))
        if target is not None:
            axes.axhline(100 * target, color="#888888", linewidth=0.9, linestyle=(0, (2, 2)), zorder=0)
    if target is not None:
        place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
        text = f"target\n{percentage(target)}"
        panels[-1].annotate(text, (1, 100 * target), (4, 0), fontsize=8, color="#555555", **place)


def whole_numbers(axis: Any) -> None:
    """Label an axis at whole numbers, such as rounds."""
    axis.get_major_locator().set_params(integer=True)


def log_scale(axis: Any, values: Iterable[float | None], most: int = 7) -> bool:
    """Make an axis logarithmic if the values span a factor of 5. Label at most `most` round numbers.

    Return whether it is logarithmic.
    """
    from matplotlib.ticker import EngFormatter, FixedLocator, MaxNLocator, NullLocator

    positive = [value for value in values if value is not None and 0 < value < math.inf]
    low, high = min(positive, default=1.0), max(positive, default=1.0)
    axis.set_major_formatter(EngFormatter(sep="") if high >= 10_000 else plain_number)
    if high < 5 * low:
        axis.set_major_locator(MaxNLocator(most - 1))
        return False
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    axis.set_major_formatter(EngFormatter(sep="") if high >= 10_000 else plain_number)
    axis.set_major_locator(FixedLocator(log_ticks(low, high, most)))
    axis.set_minor_locator(NullLocator())
    return True


def scale_losses(axes: Any, runs: Sequence[Sequence[float | None]]) -> None:
    """Scale the y axis to the losses of some runs. One that diverges leaves the figure at the top."""
    losses = [[value for value in run if value is not None and math.isfinite(value)] for run in runs]
    top = _DIVERGED * max((run[0] for run in losses if run), default=math.inf)
    shown = [value for run in losses for value in run if value <= top]
    cut = len(shown) < sum(map(len, losses))
    logarithmic = log_scale(axes.yaxis, shown)
    notes = [*(["log scale"] if logarithmic else []), *([f"cut at {top:.2g}"] if cut else [])]
    axes.set_ylabel(f"loss ({', '.join(notes)})" if notes else "loss")
    if cut:
        axes.set_ylim(0.8 * min(shown) if logarithmic else None, top)


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` round numbers between two positive numbers, about evenly spaced in the logarithm."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(inside) <= most:
            break
    return inside[:: math.ceil(len(inside) / most)] if inside else [low, high]


def even_ticks(low: float, high: float, most: int) -> list[float]:
    """Return the multiples of a round number between two numbers: at most `most`, and at least half as many."""
    size = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (size * factor for factor in (1, 2, 2.5, 5, 10, 20)):
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < most:
            break
    return [step * k for k in range(first, last + 1)]


def plain_number(value: float, _: object = None) -> str:
    """Return a number with three significant digits, and one of four digits in full: 1500 instead of 1.5e+03."""
    return f"{value:.0f}" if 999.5 <= abs(value) < 10_000 else f"{value:.3g}"


def shortened(label: str) -> str:
    """Return a label that fits into a legend."""
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…"


def percentage(target: float) -> str:
    """Return a target accuracy as text."""
    return f"{100 * target:g} %"


def reference_of(labels: Sequence[str]) -> str | None:
    """Return the method that others are compared with: FedAvg, also with its folder behind the name, or the first."""
    return next((label for label in labels if label.partition(" (")[0] == "FedAvg"), next(iter(labels), None))


def shown_d(upload: float) -> str:
    """Return an upload in units of d as text. Small ones, such as those of a strong codec, keep two digits."""
    return f"{upload:.1f}" if upload == 0 or upload >= 0.1 else f"{upload:.2g}"


def svg(figure: Any, name: str) -> str:
    """Return a figure as an SVG element. Its ids start with `name`, so that they are unique on the page."""
    file = StringIO()
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    _, _, text = file.getvalue().partition("<svg")
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    return f'<svg role="img" aria-labelledby="{name}-heading"{text}'
