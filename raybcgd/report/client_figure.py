"""The figure of the clients' own accuracies."""

from collections.abc import Sequence
from typing import Any

from raybcgd.report.runs import Method, Run
from raybcgd.report.style import NewFigure, draw_curve, line_styles


def client_accuracy(new: NewFigure, methods: Sequence[Method]) -> Any | None:
    """Plot the mean, the worst tenth and the deviation of the clients' accuracies, as means over seeds with bands.

    Centralised training, and methods with a run that did not measure them, are left out. Return None if there are no
    others.
    """
    federated = [method for method in methods if not method.first.pooled]
    measured = [m for m in federated if all(any(record.quality.clients for record in run.records) for run in m.runs)]
    if not measured:
        return None
    figure = new(11.5, 3.5)
    panels, styles = figure.subplots(1, 3), line_styles(method.label for method in methods)
    names = {"mean": "mean, %", "worst_tenth": "worst tenth, %", "deviation": "standard deviation, %"}
    for axes, (name, label) in zip(panels, names.items(), strict=True):
        for method in measured:
            curves = [_curve(run, name) for run in method.runs]
            draw_curve(axes, curves, method.label, styles[method.label])
        axes.set(xlabel="rounds", ylabel=label)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper left", ncols=6, frameon=False, handlelength=3.2)
    return figure


def _curve(run: Run, name: str) -> tuple[list[int], list[float]]:
    """Return the rounds that measured the clients' accuracies, and one of the statistics in percent."""
    found = [(record.round + 1, record.quality.clients) for record in run.records]
    known = [(x, 100 * getattr(clients, name)) for x, clients in found if clients is not None]
    return [x for x, _ in known], [y for _, y in known]
