"""The look of all figures: colours, dashes, hatches, fonts, and the figure factory."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from raybcgd.errors import ConfigError

New = Callable[[float, float], Any]
"""Creates a figure from a width and a height in inches."""

# The palette of Okabe and Ito, which colour-blind readers can tell apart. Dashes and hatches repeat the distinction.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":")
_HATCHES = (None, "////", "....", "\\\\\\\\", "xxxx")
_STAGES = {
    "plan": ("#F0E442", "++++"),
    "broadcast": ("#56B4E9", "////"),
    "train": ("#0072B2", None),
    "reduce": ("#009E73", "...."),
    "evaluate": ("#E69F00", "\\\\\\\\"),
    "checkpoint": ("#CC79A7", "xxxx"),
}
STAGES = tuple(_STAGES)

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # keep text as text: searchable and small
    "svg.hashsalt": "raybcgd",  # the same runs give the same page
    "savefig.dpi": 130,
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
    "hatch.linewidth": 0.4,
}


def line_style(k: int) -> dict[str, Any]:
    """Return colour and dash of the k-th run, the same in every figure."""
    return {"color": _COLOURS[k % len(_COLOURS)], "linestyle": _DASHES[k % len(_DASHES)], "linewidth": 1.8}


def bar_style(k: int) -> dict[str, Any]:
    """Return colour and hatch of the k-th run."""
    return {"color": line_style(k)["color"], "hatch": _HATCHES[k % len(_HATCHES)], "edgecolor": "white"}


def stage_style(stage: str) -> dict[str, Any]:
    """Return colour and hatch of a stage."""
    colour, hatch = _STAGES[stage]
    return {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}


@contextmanager
def drawing() -> Iterator[New]:
    """Apply the shared settings and provide the figure factory."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("figures need matplotlib; pip install raybcgd[plots]") from None

    def new(width: float, height: float) -> Any:
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        return figure

    with matplotlib.rc_context(_SETTINGS):
        yield new


def heat_map(axes: Any, table: Any, **options: Any) -> Any:
    """Draw a table as colours, its first row at the bottom."""
    axes.grid(visible=False)
    return axes.imshow(table, aspect="auto", origin="lower", interpolation="nearest", cmap="cividis", **options)


def mark_target(axes: Any, target: float) -> None:
    """Scale the y axis to per cent and draw a line at the target accuracy."""
    axes.set_ylim(0, 101)
    axes.axhline(100 * target, color="#888888", linewidth=0.9, linestyle=(0, (2, 2)), zorder=0)


def name_target(axes: Any, target: float, right: bool) -> None:
    """Write the target at the right end below its line, or at the left end above it."""
    x, offset, side = (0.99, -11, "right") if right else (0.01, 3, "left")
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": side}
    axes.annotate(f"target {percentage(target)}", (x, 100 * target), (0, offset), fontsize=8, color="#555555", **place)


def plain_numbers(axis: Any) -> None:
    """Label a logarithmic axis at 1, 2 and 5 without powers of ten."""
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")


def percentage(target: float) -> str:
    """Return a target accuracy as text."""
    return f"{100 * target:g} %"


def svg(figure: Any, name: str) -> str:
    """Return a figure as an element of a page. Its ids start with `name`, so that figures do not share any."""
    buffer = BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    return text.replace("<svg ", f'<svg role="img" aria-labelledby="{name}-heading" ', 1)
