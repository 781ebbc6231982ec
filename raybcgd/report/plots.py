"""The plot of a comparison: accuracy against upload."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from raybcgd.record.rounds import RoundRecord
from raybcgd.record.summary import accuracies, keeps, last_tenth, losses_of, reaches
from raybcgd.report.style import (
    NewFigure,
    draw_curve,
    drawing,
    line_styles,
    log_scale,
    mark_target,
    percentage,
    reference_of,
    scale_losses,
    shortened,
    shown_d,
)

Methods = Mapping[str, Sequence[Sequence[RoundRecord]]]
"""By label: the records of a method's runs, one run per seed."""
_TITLE_COLUMNS, _SUBJECT_COLUMNS = 66, 80
_ENOUGH_SEEDS = 3
"""A title claims a result only with at least this many seeds."""
_DOT, _RING, _RINGS = 6.0, 4.0, 14.0
"""Diameter of a dot, how much each ring around it adds to the diameter, and how much all rings add at most."""


def accuracy_against_upload(
    methods: Methods,
    target: float,
    subject: str,
    path: Path,
    references: Collection[str] = (),
    failed: Collection[str] = (),
) -> None:
    """Write a PNG plot of accuracy against the mean upload per client so far, in units of d."""
    with drawing() as new:
        upload_figure(new, methods, target, subject, references, failed).savefig(path)


def upload_figure(
    new: NewFigure,
    methods: Methods,
    target: float,
    subject: str,
    references: Collection[str] = (),
    failed: Collection[str] = (),
) -> Any:
    """Return the figure. The line below the title states the conditions.

    The `references` are centralised: they have no upload, and are drawn as horizontal lines. The legend lists the
    methods that `failed`.
    """
    figure = new(9.6, max(4.6, 1.6 + 0.22 * (len(methods) + len(failed))))
    axes = figure.subplots()
    styles = line_styles(methods)
    regression = is_regression(methods)
    federated = {label: runs for label, runs in methods.items() if label not in references}
    for label, runs in methods.items():
        curves = [_curve(run, regression) for run in runs]
        if label in federated:
            draw_curve(axes, curves, label, styles[label], above_lowest=regression)
        else:
            level = np.mean([tail[0] for _, values in curves if (tail := last_tenth(values)) is not None] or [np.nan])
            axes.axhline(float(level), label=label, **styles[label])
    uploads = [value for runs in federated.values() for run in runs for value in _curve(run, regression)[0]]
    scale = " (log scale)" if log_scale(axes.xaxis, uploads, most=9) else ""
    axes.set_xlabel(f"mean upload per client so far, in units of the model size d{scale}")
    if regression:
        scale_losses(axes, [losses_of(run) for runs in methods.values() for run in runs])
    else:
        axes.set_ylabel("accuracy, %")
        mark_target([axes], target)
    costs = {label: _cost(runs, target) for label, runs in federated.items()}
    dots = _mark_costs(axes, costs, styles, target)
    texts = {label: _shown(costs[label], runs, target) for label, runs in federated.items()}
    starred = any(text.endswith("*") for text in texts.values())
    texts = {**dict.fromkeys(methods, "no upload"), **texts}
    _legend(figure, axes, costs, texts, None if regression else target, failed)
    title = headline(methods, target, references)
    figure.suptitle(fill(title, _TITLE_COLUMNS), x=0.01, ha="left", fontsize=13, fontweight="bold")
    seeds = any(len(runs) > 1 for runs in methods.values())
    subject += "; bands: ± one standard deviation over seeds" if seeds else ""
    subject += (
        f"; dots: upload after the first round with {percentage(target)}{', mean over seeds' * seeds}" if dots else ""
    )
    subject += f"; *: the mean of the last tenth is below {percentage(target)}" if starred else ""
    axes.set_title(fill(subject, _SUBJECT_COLUMNS), fontsize=9.5, fontweight="normal", color="#444444")
    return figure


def _mark_costs(
    axes: Any, costs: Mapping[str, float | None], styles: Mapping[str, Mapping[str, str]], target: float
) -> bool:
    """Mark the uploads to the target with dots, equal ones with concentric dots. Return whether there are any."""
    low, high = axes.get_ylim()
    groups: dict[str, list[tuple[str, float]]] = {}
    for label, cost in costs.items():
        if cost is not None and low <= 100 * target <= high:
            groups.setdefault(shown_d(cost), []).append((label, cost))
    for group in groups.values():
        wider = min(_RING, _RINGS / max(1, len(group) - 1))
        for k, (label, cost) in enumerate(group):
            size = _DOT + wider * (len(group) - 1 - k)
            axes.plot(cost, 100 * target, "o", color=styles[label]["color"], markersize=size, zorder=5, mew=0)
    return bool(groups)


def is_regression(methods: Methods) -> bool:
    """Return whether the runs have losses, but no accuracies."""
    records = [record for runs in methods.values() for run in runs for record in run]
    return not accuracies(records) and bool(losses_of(records))


def _curve(records: Sequence[RoundRecord], regression: bool) -> tuple[list[float], list[float]]:
    """Return the uploads so far and the accuracies in percent, or the losses of a regression."""
    found = [(r.traffic.upload_d_total, r.quality.loss if regression else r.quality.accuracy) for r in records]
    known = [(upload, value if regression else 100 * value) for upload, value in found if value is not None]
    return [upload for upload, _ in known], [value for _, value in known]


def _legend(
    figure: Any,
    axes: Any,
    costs: Mapping[str, float | None],
    texts: Mapping[str, str],
    target: float | None,
    failed: Collection[str],
) -> None:
    """List the methods beside the plot, the cheapest first, with their upload to the target if there is one.

    Those that `failed` have no line, and come last.
    """
    from matplotlib.lines import Line2D

    lines = {line.get_label(): line for line in axes.lines if line.get_label() in texts}
    order = sorted(lines, key=lambda label: (costs.get(label) is None, costs.get(label) or 0.0))
    names = {label: shortened(label) for label in order}
    title = None if target is None else f"first reaches {percentage(target)} after"
    figure.legend(
        [*(lines[label] for label in order), *(Line2D([], [], linestyle="none") for _ in failed)],
        [
            *(names[label] if target is None else f"{names[label]}: {texts[label]}" for label in order),
            *(f"{shortened(label)}: failed" for label in failed),
        ],
        loc="outside right upper",
        title=title,
        frameon=False,
        handlelength=3.0,
        alignment="left",
    )


def _shown(cost: float | None, runs: Sequence[Sequence[RoundRecord]], target: float) -> str:
    """Return the upload to the target. As in the table, a star means that the last tenth is below the target."""
    if cost is not None:
        tails = [tail[0] for records in runs if (tail := last_tenth(accuracies(records))) is not None]
        return f"{shown_d(cost)} d{'*' if np.mean(tails) < target else ''}"
    reached = sum(reaches(records, target) is not None for records in runs)
    return f"only {reached} of {len(runs)} seeds" if reached else "never"


def _cost(runs: Sequence[Sequence[RoundRecord]], target: float) -> float | None:
    """Return the mean upload until the target is first reached; None if one of the runs never reaches it."""
    reached = [reaches(records, target) for records in runs]
    costs = [record.traffic.upload_d_total for record in reached if record is not None]
    return float(np.mean(costs)) if len(costs) == len(runs) else None


def headline(methods: Methods, target: float, references: Collection[str] = ()) -> str:
    """Return a title. It claims a saving only if at least `_ENOUGH_SEEDS` seeds agree on it.

    Every seed has to save upload, and the saving has to exceed 1 by more than one standard deviation. The cheapest
    method has to keep the target from some round to the end; the other one only has to reach it once. Centralised
    `references` have no upload to save.
    """
    claim = _claim({label: runs for label, runs in methods.items() if label not in references}, target)
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
    """Return the saving of the cheapest method over the reference, or over the most expensive method. None if unclear.

    As in the tables, uploads count up to the first round with the target, and the saving is the ratio of their means.
    """
    costs = _costs(methods, target)
    kept = [label for label in costs if all(keeps(records, target) is not None for records in methods[label])]
    best = min(kept, key=lambda label: float(np.mean(costs[label])), default="")
    others = [label for label in costs if label != best]
    if not kept or not others:
        return None
    reference = reference_of(list(methods))
    if reference not in others:
        reference = max(others, key=lambda label: float(np.mean(costs[label])))
    if len(costs[best]) != len(costs[reference]):
        return None
    ratios = np.array(costs[reference]) / np.array(costs[best])
    saving, deviation = float(np.mean(costs[reference]) / np.mean(costs[best])), float(ratios.std(ddof=1))
    if ratios.min() <= 1 or saving - deviation <= 1:
        return None
    gain = f"{saving:.1f} ± {deviation:.1f} times less upload than {reference}"
    return f"{best} reaches {percentage(target)} accuracy with {gain} ({len(ratios)} seeds)"


def _costs(methods: Methods, target: float) -> dict[str, list[float]]:
    """Return each run's upload up to the first round with the target.

    Methods with too few seeds, or with a run that never reaches the target, are left out.
    """
    found = {label: [reaches(records, target) for records in runs] for label, runs in methods.items()}
    return {
        label: [record.traffic.upload_d_total for record in records if record is not None]
        for label, records in found.items()
        if len(records) >= _ENOUGH_SEEDS and None not in records
    }
