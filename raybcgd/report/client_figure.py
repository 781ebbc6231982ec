"""The figure of the clients' own accuracies."""

from collections.abc import Sequence
from typing import Any

from raybcgd.report.runs import Run
from raybcgd.report.style import NewFigure


def client_accuracy(new: NewFigure, runs: Sequence[Run]) -> Any | None:
    """Plot the mean, the worst tenth and the deviation of the clients' accuracies. None if no run measured them."""
    measured = [run for run in runs if any(record.quality.clients for record in run.records)]
    if not measured:
        return None
    figure = new(11.5, 3.5)
    panels = figure.subplots(1, 3)
    names = {"mean": "mean, %", "worst_tenth": "worst tenth, %", "deviation": "standard deviation, %"}
    for axes, (name, label) in zip(panels, names.items(), strict=True):
        for run in measured:
            found = [(record.round + 1, record.quality.clients) for record in run.records]
            points = [(x, 100 * getattr(clients, name)) for x, clients in found if clients is not None]
            axes.plot([x for x, _ in points], [y for _, y in points], label=run.label)
        axes.set(xlabel="rounds", ylabel=label)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper left", ncols=6, frameon=False, handlelength=3.2)
    return figure
