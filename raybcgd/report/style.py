"""How figures look: colours and dashes that everybody can tell apart, and little else."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from raybcgd.errors import ConfigError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's."""
DASHES = ("-", "--", "-.", ":")
PHASE_COLOURS = {
    "plan": "#F0E442",
    "broadcast": "#56B4E9",
    "train": "#0072B2",
    "reduce": "#009E73",
    "evaluate": "#E69F00",
    "checkpoint": "#CC79A7",
}
HATCHES = {"broadcast": "////", "reduce": "....", "evaluate": "\\\\\\\\", "checkpoint": "xxxx", "plan": "++++"}
"""So that colour is never alone."""


def line_style(k: int) -> dict[str, Any]:
    """Of the k-th run: another dash for every run, another colour too."""
    return {"color": COLOURS[k % len(COLOURS)], "linestyle": DASHES[k % len(DASHES)], "linewidth": 1.8}


@contextmanager
def drawing() -> Iterator[Any]:
    """A function that makes figures, with our settings while the block lasts."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("a report needs matplotlib; pip install raybcgd[plots]") from None

    def new(width: float, height: float) -> Any:
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        return figure

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",  # text stays text: it can be searched, and the file is small
        "svg.hashsalt": "raybcgd",  # the same runs give the same page
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
    with matplotlib.rc_context(settings):
        yield new


def svg(figure: Any, name: str) -> str:
    """A figure as an element of a page, with names of its own."""
    buffer = BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    return text.replace("<svg ", f'<svg role="img" aria-labelledby="{name}-heading" ', 1)
