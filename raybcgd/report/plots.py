"""The plot of a comparison: accuracy against upload."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raybcgd.record.rounds import RoundRecord
from raybcgd.record.summary import accuracies, reaches
from raybcgd.report.style import NewFigure, drawing, mark_target, percentage, plain_numbers

Records = Mapping[str, Sequence[RoundRecord]]
"""The records of runs by label."""
_LABEL_HEIGHT = 6.5
"""Height of a label in the plot, in percentage points of accuracy."""


def accuracy_against_upload(runs: Records, target: float, subject: str, path: Path) -> None:
    """Write a PNG plot of accuracy against the mean upload per client so far, in units of d."""
    with drawing() as new:
        upload_figure(new, runs, target, subject).savefig(path)


def upload_figure(new: NewFigure, runs: Records, target: float, subject: str) -> Any:
    """Return the figure. Its title states the result; the line below states the conditions."""
    figure = new(8.4, 4.9)
    axes = figure.subplots()
    axes.set_xscale("log", subs=[2, 5])
    plain_numbers(axes.xaxis)
    axes.grid(visible=True, which="both")
    axes.set_xlabel("mean upload per client so far, in units of the model size d (log scale)")
    axes.set_ylabel("test accuracy, %")
    mark_target([axes], target)
    for label, records in runs.items():
        x = [record.traffic.upload_d_total for record in records if record.quality.accuracy is not None]
        axes.plot(x, [100 * accuracy for accuracy in accuracies(records)], label=label)
    _label_runs(axes, runs, target)
    figure.suptitle(headline(runs, target), x=0.01, ha="left", fontsize=13, fontweight="bold")
    axes.set_title(subject, fontsize=9.5, fontweight="normal", color="#444444")
    return figure


def _label_runs(axes: Any, runs: Records, target: float) -> None:
    """Label each run below the point where it reaches the target, the cheapest run lowest."""
    colours = {line.get_label(): line.get_color() for line in axes.lines}
    text = {"textcoords": "offset points", "fontsize": 10, "bbox": {"color": "white", "alpha": 0.8, "pad": 0.5}}
    costs = _costs(runs, target)
    for k, label in enumerate(sorted(costs, key=lambda label: costs[label])):
        cost, colour, foot = costs[label], colours[label], 4 + _LABEL_HEIGHT * k
        axes.vlines(cost, foot, 100 * target, color=colour, linewidth=0.7, alpha=0.6, zorder=1)
        axes.plot(cost, 100 * target, "o", color=colour, markersize=7, zorder=5)
        axes.annotate(f"{label}: {cost:.1f} d", (cost, foot), (5, -3), color=colour, fontweight="bold", **text)
    for k, label in enumerate(label for label in runs if label not in costs):
        last = runs[label][-1].traffic.upload_d_total, 100 * (accuracies(runs[label]) or [0.0])[-1]
        axes.annotate(f"{label}: never", last, (0, -14 * (k + 1)), color=colours[label], ha="right", **text)


def _costs(runs: Records, target: float) -> dict[str, float]:
    """Return the upload per client to the target, in units of d, for the runs that reach it."""
    reached = {label: reaches(records, target) for label, records in runs.items()}
    return {label: record.traffic.upload_d_total for label, record in reached.items() if record is not None}


def headline(runs: Records, target: float) -> str:
    """Return a title: the run with the least upload to the target, and its saving compared with FedAvg."""
    costs, goal = _costs(runs, target), percentage(target)
    if not costs:
        return f"No run reaches {goal}"
    best = min(costs, key=lambda label: costs[label])
    cost = costs.pop(best)
    if not costs:
        return f"{best} reaches {goal} with {cost:.1f} d uploaded" + ("; no other run does" if len(runs) > 1 else "")
    reference = "FedAvg" if "FedAvg" in costs else max(costs, key=lambda label: costs[label])
    return f"{best} reaches {goal} with {costs[reference] / cost:.1f} times less upload than {reference}"
