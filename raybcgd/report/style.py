"""The style of all figures: colours, dashes, hatches, fonts, and the figure factory."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

from raybcgd.errors import ConfigError

NewFigure = Callable[[float, float], Any]
"""Creates a figure from a width and a height in inches."""

# The palette of Okabe and Ito, which colour-blind readers can tell apart. Dashes and hatches also tell runs apart.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
_DASHES = ["-", "--", "-.", ":"]
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
    """Apply the shared settings and yield the figure factory. The k-th line has the same style in all axes."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.rcsetup import cycler
    except ImportError:
        raise ConfigError("figures need matplotlib; pip install raybcgd[plots]") from None
    styles = cycler(color=_COLOURS * len(_DASHES), linestyle=_DASHES * len(_COLOURS))
    with matplotlib.rc_context({**_SETTINGS, "axes.prop_cycle": styles}):
        yield lambda width, height: Figure(figsize=(width, height))


def heat_map(axes: Any, table: Any, **options: Any) -> Any:
    """Draw a table as a heat map, with its first row at the bottom. NaN is grey."""
    axes.grid(visible=False)
    axes.set_facecolor("#dddddd")
    return axes.imshow(table, aspect="auto", origin="lower", interpolation="nearest", cmap="cividis", **options)


def mark_target(panels: Sequence[Any], target: float) -> None:
    """Set the y axes to percent, and draw a line at the target accuracy. The last panel labels it."""
    for axes in panels:
        axes.set_ylim(0, 101)
        axes.axhline(100 * target, color="#888888", linewidth=0.9, linestyle=(0, (2, 2)), zorder=0)
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    text = f"target\n{percentage(target)}"
    panels[-1].annotate(text, (1, 100 * target), (4, 0), fontsize=8, color="#555555", **place)


def plain_numbers(axis: Any) -> None:
    """Label a logarithmic axis at 1, 2 and 5 without powers of ten."""
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")


def percentage(target: float) -> str:
    """Return a target accuracy as text."""
    return f"{100 * target:g} %"


def svg(figure: Any, name: str) -> str:
    """Return a figure as an SVG element. Its ids start with `name`, so that they are unique on the page."""
    file = StringIO()
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    _, _, text = file.getvalue().partition("<svg")
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    return f'<svg role="img" aria-labelledby="{name}-heading"{text}'
