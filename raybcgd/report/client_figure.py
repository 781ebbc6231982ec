"""The figure of the clients' own accuracies."""

from collections.abc import Sequence
from typing import Any

from raybcgd.report.runs import Method
from raybcgd.report.style import NewFigure, line_styles


def client_accuracy(new: NewFigure, methods: Sequence[Method]) -> Any | None:
    """Plot the mean, the worst tenth and the deviation of the clients' accuracies in the first run of each method.

    Return None if no run measured them.
    """
    measured = [m for m in methods if any(record.quality.clients for record in m.first.records)]
    if not measured:
        return None
    figure = new(11.5, 3.5)
    panels, styles = figure.subplots(1, 3), line_styles(method.label for method in methods)
    names = {"mean": "mean, %", "worst_tenth": "worst tenth, %", "deviation": "standard deviation, %"}
    for axes, (name, label) in zip(panels, names.items(), strict=True):
        for method in measured:
            found = [(record.round + 1, record.quality.clients) for record in method.first.records]
            points = [(x, 100 * getattr(clients, name)) for x, clients in found if clients is not None]
            axes.plot([x for x, _ in points], [y for _, y in points], label=method.label, **styles[method.label])
        axes.set(xlabel="rounds", ylabel=label)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper left", ncols=6, frameon=False, handlelength=3.2)
    return figure
