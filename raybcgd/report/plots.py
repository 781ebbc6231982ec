"""Pictures of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raybcgd.errors import ConfigError
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.standing import uploaded_to

# Okabe and Ito's colours, which everybody can tell apart, and a dash for each so that colour is never alone.
_COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
_LINE_HEIGHT = 6.5
"""Of a name in the plot, in per cent of accuracy."""
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
    _frame(axes, target)
    for k, records in enumerate(runs.values()):
        judged = [record for record in records if record.accuracy is not None]
        x = [record.upload_d_total for record in judged]
        y = [100 * (record.accuracy or 0.0) for record in judged]
        axes.plot(x, y, _DASHES[k % len(_DASHES)], color=_COLOURS[k % len(_COLOURS)], linewidth=1.7)
    _name(axes, runs, target)
    figure.suptitle(headline(runs, target), x=0.01, ha="left", fontsize=13, fontweight="bold")
    axes.set_title(subject, loc="left", fontsize=9.5, color="#444444")
    figure.savefig(path, dpi=130)


def _frame(axes: Any, target: float) -> None:
    axes.set_xscale("log", subs=[2, 5])
    axes.set_xlabel("uploaded by a sampled client so far, in units of the model's size d (log scale)")
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(0, 101)
    axes.axhline(100 * target, color="#888888", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
    axes.annotate(
        f"target {100 * target:g} %",
        (0.01, 100 * target),
        (0, 3),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        fontsize=9,
        color="#666666",
    )
    axes.grid(which="both", axis="x", color="#efefef", linewidth=0.7)
    axes.grid(axis="y", color="#efefef", linewidth=0.7)
    axes.set_axisbelow(True)
    for axis in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        axis(lambda value, _: f"{value:g}")
    axes.spines[["top", "right"]].set_visible(False)


def _name(axes: Any, runs: Mapping[str, Sequence[RoundRecord]], target: float) -> None:
    """Each run's name at the foot of a line that drops from where it meets the target; the cheapest one lowest."""
    reached = {label: uploaded_to(records, target) for label, records in runs.items()}
    colours = {label: _COLOURS[k % len(_COLOURS)] for k, label in enumerate(runs)}
    met = {label: record.upload_d_total for label, record in reached.items() if record is not None}
    for k, (label, cost) in enumerate(sorted(met.items(), key=lambda item: item[1])):
        foot = 4 + _LINE_HEIGHT * k
        axes.plot([cost, cost], [foot, 100 * target], color=colours[label], linewidth=0.7, alpha=0.6, zorder=1)
        axes.plot([cost], [100 * target], "o", color=colours[label], markersize=7, zorder=5)
        text = f"{label}: {cost:.1f} d"
        axes.annotate(text, (cost, foot), (5, -3), textcoords="offset points", color=colours[label], fontweight="bold")
    for k, label in enumerate(label for label in runs if label not in met):
        last = runs[label][-1]
        place = (last.upload_d_total, 100 * (last.accuracy or 0.0))
        axes.annotate(
            f"{label}: never", place, (0, -14 * (k + 1)), textcoords="offset points", ha="right", color=colours[label]
        )


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
