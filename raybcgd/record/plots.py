"""Pictures of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raybcgd.errors import ConfigError
from raybcgd.record.report import uploaded_to
from raybcgd.record.rounds import RoundRecord

# Okabe and Ito's colours, which everybody can tell apart, and a dash for each so that colour is never alone.
_COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
_DASHES = ("-", "--", "-", "--", "-.", ":", "-")


def accuracy_against_upload(runs: Mapping[str, Sequence[RoundRecord]], target: float, subject: str, path: Path) -> None:
    """Write a PNG: the accuracy of each run against what a sampled client has uploaded so far, in units of d."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("drawing needs matplotlib; pip install raybcgd[plots]") from None
    figure = Figure(figsize=(8.4, 4.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    ends = []
    for k, (label, records) in enumerate(runs.items()):
        judged = [record for record in records if record.accuracy is not None]
        x = [record.upload_d_total for record in judged]
        y = [100 * (record.accuracy or 0.0) for record in judged]
        colour, dash = _COLOURS[k % len(_COLOURS)], _DASHES[k % len(_DASHES)]
        axes.plot(x, y, dash, color=colour, linewidth=1.6, solid_capstyle="round")
        reached = uploaded_to(records, target)
        if reached is not None:
            axes.plot([reached.upload_d_total], [100 * target], "o", color=colour, markersize=7, zorder=5)
        ends.append((label, x, y, colour))
    _finish(axes, ends, target)
    figure.suptitle(headline(runs, target), x=0.01, ha="left", fontsize=13, fontweight="bold")
    axes.set_title(subject, loc="left", fontsize=9.5, color="#444444")
    figure.savefig(path, dpi=130)


def _finish(axes: Any, ends: Sequence[tuple[str, list[float], list[float], str]], target: float) -> None:
    """Axes, target line, and each run's name beside its curve."""
    axes.set_xscale("log")
    axes.set_xlabel("uploaded by a sampled client so far, in units of the model's size d (log scale)")
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(0, 101)
    axes.axhline(100 * target, color="#888888", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
    axes.grid(axis="both", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def headline(runs: Mapping[str, Sequence[RoundRecord]], target: float) -> str:
    """What one sees: who needs the least upload for the target, and how much that saves against FedAvg."""
    costs = {label: reached.upload_d_total for label, r in runs.items() if (reached := uploaded_to(r, target))}
    goal = f"{100 * target:g} %"
    if not costs:
        return f"Nobody reached {goal}"
    best = min(costs, key=lambda label: costs[label])
    others = {label: cost for label, cost in costs.items() if label != best}
    reference = "FedAvg" if "FedAvg" in others else max(others, key=lambda label: others[label], default=None)
    if reference is None:
        return f"{best} reaches {goal} with {costs[best]:.1f} d uploaded" + (
            ", the others never" if len(runs) > 1 else ""
        )
    factor = costs[reference] / costs[best]
    return f"{best} reaches {goal} with {factor:.1f} times fewer uploaded floats than {reference}"
