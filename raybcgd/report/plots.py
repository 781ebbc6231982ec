"""The plot of a comparison: accuracy against upload."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from raybcgd.record.rounds import RoundRecord
from raybcgd.record.summary import accuracies, keeps, losses_of, reaches
from raybcgd.report.style import (
    NewFigure,
    draw_curve,
    drawing,
    line_styles,
    log_scale,
    mark_target,
    percentage,
    shortened,
)

Methods = Mapping[str, Sequence[Sequence[RoundRecord]]]
"""By label: the records of a method's runs, one run per seed."""
_TITLE_COLUMNS, _SUBJECT_COLUMNS = 66, 80
_FEW_SEEDS = 3
"""A title claims a result only with this many seeds."""


def accuracy_against_upload(methods: Methods, target: float, subject: str, path: Path) -> None:
    """Write a PNG plot of accuracy against the mean upload per client so far, in units of d."""
    with drawing() as new:
        upload_figure(new, methods, target, subject).savefig(path)


def upload_figure(new: NewFigure, methods: Methods, target: float, subject: str) -> Any:
    """Return the figure. The line below the title states the conditions."""
    figure = new(9.6, max(4.6, 1.6 + 0.22 * len(methods)))
    axes = figure.subplots()
    styles = line_styles(methods)
    regression = is_regression(methods)
    for label, runs in methods.items():
        draw_curve(axes, [_curve(run, regression) for run in runs], label, styles[label])
    uploads = [value for runs in methods.values() for run in runs for value in _curve(run, regression)[0]]
    scale = " (log scale)" if log_scale(axes.xaxis, uploads, most=9) else ""
    axes.set_xlabel(f"mean upload per client so far, in units of the model size d{scale}")
    if regression:
        losses = [loss for runs in methods.values() for run in runs for loss in losses_of(run)]
        axes.set_ylabel("test loss (log scale)" if log_scale(axes.yaxis, losses) else "test loss")
    else:
        axes.set_ylabel("test accuracy, %")
        mark_target([axes], target)
    costs = {label: _cost(runs, target) for label, runs in methods.items()}
    low, high = axes.get_ylim()
    for label, cost in costs.items():
        if cost is not None and low <= 100 * target <= high:
            axes.plot(cost, 100 * target, "o", color=styles[label]["color"], markersize=6, zorder=5)
    _legend(figure, axes, costs, None if regression else target)
    figure.suptitle(fill(headline(methods, target), _TITLE_COLUMNS), x=0.01, ha="left", fontsize=13, fontweight="bold")
    bands = "" if all(len(runs) == 1 for runs in methods.values()) else "; bands: ± one standard deviation over seeds"
    axes.set_title(fill(subject + bands, _SUBJECT_COLUMNS), fontsize=9.5, fontweight="normal", color="#444444")
    return figure


def is_regression(methods: Methods) -> bool:
    """Return whether the runs have losses, but no accuracies."""
    records = [record for runs in methods.values() for run in runs for record in run]
    return not accuracies(records) and bool(losses_of(records))


def _curve(records: Sequence[RoundRecord], regression: bool) -> tuple[list[float], list[float]]:
    """Return the uploads so far and the accuracies in percent, or the losses of a regression."""
    found = [(r.traffic.upload_d_total, r.quality.loss if regression else r.quality.accuracy) for r in records]
    known = [(upload, value if regression else 100 * value) for upload, value in found if value is not None]
    return [upload for upload, _ in known], [value for _, value in known]


def _legend(figure: Any, axes: Any, costs: Mapping[str, float | None], target: float | None) -> None:
    """List the methods beside the plot, the cheapest first, with their upload to the target if there is one."""
    lines = {line.get_label(): line for line in axes.lines if line.get_label() in costs}
    order = sorted(lines, key=lambda label: (costs[label] is None, costs[label] or 0.0))
    texts = [shortened(label) if target is None else f"{shortened(label)}: {_shown(costs[label])}" for label in order]
    title = None if target is None else f"first reaches {percentage(target)} after"
    figure.legend(
        [lines[label] for label in order],
        texts,
        loc="outside right upper",
        title=title,
        frameon=False,
        handlelength=3.0,
        alignment="left",
    )


def _shown(cost: float | None) -> str:
    return "never" if cost is None else f"{cost:.1f} d"


def _cost(runs: Sequence[Sequence[RoundRecord]], target: float) -> float | None:
    """Return the mean upload until the target is first reached; None if one of the runs never reaches it."""
    reached = [reaches(records, target) for records in runs]
    costs = [record.traffic.upload_d_total for record in reached if record is not None]
    return float(np.mean(costs)) if len(costs) == len(runs) else None


def headline(methods: Methods, target: float) -> str:
    """Return a title. It claims a saving only if it is sustained: with several seeds, each beyond the noise.

    The cheapest method has to keep the target from some round to the end; the other one only has to reach it once.
    """
    claim = _claim(methods, target)
    if claim is not None:
        return claim
    regression = is_regression(methods)
    quality = "Loss" if regression else "Accuracy"
    if len(methods) > 4:
        return f"{quality} and upload of {len(methods)} methods"
    names = [shortened(label) for label in methods]
    if len(names) == 1:
        (runs,) = methods.values()
        finals = [found[-1] for records in runs if (found := (losses_of if regression else accuracies)(records))]
        shown = f"loss {np.mean(finals):.4g} after " if regression else f"{np.mean(finals or [0]):.1%} after "
        return f"{names[0]}: {shown if finals else ''}{len(runs[0])} rounds"
    return f"{quality} and upload of {', '.join(names[:-1])} and {names[-1]}"


def _claim(methods: Methods, target: float) -> str | None:
    """Return the saving of the cheapest method compared with FedAvg, or with the most expensive one, if it is one."""
    kept, reached = _costs(methods, target, keeps), _costs(methods, target, reaches)
    best = min(kept, key=lambda label: float(np.mean(kept[label])), default="")
    others = [label for label in reached if label != best]
    if not kept or not others:
        return None
    reference = "FedAvg" if "FedAvg" in others else max(others, key=lambda label: float(np.mean(reached[label])))
    if len(kept[best]) != len(reached[reference]):
        return None
    ratios = np.array(reached[reference]) / np.array(kept[best])
    mean, deviation = float(ratios.mean()), float(ratios.std(ddof=1))
    if ratios.min() <= 1 or mean - deviation <= 1:
        return None
    gain = f"{mean:.1f} ± {deviation:.1f} times less upload than {reference}"
    return f"{best} keeps {percentage(target)} with {gain} ({len(ratios)} seeds)"


def _costs(
    methods: Methods, target: float, find: Callable[[Sequence[RoundRecord], float], RoundRecord | None]
) -> dict[str, list[float]]:
    """Return the upload of each run up to a round, for the methods with enough seeds that all have such a round."""
    found = {label: [find(records, target) for records in runs] for label, runs in methods.items()}
    return {
        label: [record.traffic.upload_d_total for record in records if record is not None]
        for label, records in found.items()
        if len(records) >= _FEW_SEEDS and None not in records
    }
