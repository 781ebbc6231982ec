"""The figures of a report, which compare all runs. A function returns None if there is nothing to show."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from raybcgd.record.partition import PartitionRecord
from raybcgd.record.rounds import RoundRecord, block_name
from raybcgd.report.heat_map import label_map
from raybcgd.report.runs import Method, Run
from raybcgd.report.style import (
    BAND_ALPHA,
    HATCHES,
    STAGES,
    NewFigure,
    draw_curve,
    even_ticks,
    heat_map,
    line_styles,
    log_scale,
    log_ticks,
    mark_target,
    plain_number,
    scale_losses,
    shortened,
    whole_numbers,
)

_MAX_HEAT_MAPS = 12
_MAX_PARTITIONS = 6
_WIDTH = 11.5
_LEAST_FACTOR = 2.0
"""The highest value on the colour scale of a heat map, divided by the lowest one, is at least this."""


def accuracy(new: NewFigure, methods: Sequence[Method], target: float | None) -> Any | None:
    """Plot accuracy against rounds, uploaded floats and uploaded bytes."""
    methods = [method for method in methods if all(run.accuracies for run in method.runs)]
    if not methods:
        return None
    figure = _against_all(new, methods, lambda run: [100 * value for value in run.accuracies], "accuracy, %")
    mark_target(figure.axes, target)
    return figure


def loss(new: NewFigure, methods: Sequence[Method]) -> Any | None:
    """Plot loss against rounds, uploaded floats and uploaded bytes."""
    losses = [[record.quality.loss for record in run.evaluated] for method in methods for run in method.runs]
    if all(value is None for run in losses for value in run):
        return None
    figure = _against_all(new, methods, lambda run: [r.quality.loss for r in run.evaluated], "loss")
    scale_losses(figure.axes[0], losses)  # the others share its y axis
    return figure


_X: dict[str, Callable[[Run], Sequence[float]]] = {
    "rounds": lambda run: run.rounds,
    "floats uploaded by all clients": lambda run: run.floats,
    "bytes uploaded by all clients": lambda run: run.bytes,
}


def _against_all(
    new: NewFigure, methods: Sequence[Method], y: Callable[[Run], Sequence[float | None]], label: str
) -> Any:
    rows = legend_rows([method.label for method in methods])
    figure = new(_WIDTH, 3.2 + 0.2 * rows)
    panels, styles = figure.subplots(1, 3, sharey=True), line_styles(method.label for method in methods)
    for axes, (name, values) in zip(panels, _X.items(), strict=True):
        seen: list[float] = []
        for method in (method for method in methods if method.first.evaluated):
            if method.first.pooled and name != "rounds":
                continue  # centralised training uploads nothing
            xs = [[values(run)[record.round] for record in run.evaluated] for run in method.runs]
            curves = [(x, y(run)) for x, run in zip(xs, method.runs, strict=True)]
            draw_curve(axes, curves, method.label, styles[method.label], above_lowest=label == "loss")
            seen += [value for x in xs for value in x]
        if name == "rounds":
            whole_numbers(axes.xaxis)
            axes.set_xlabel(name)
        else:
            axes.set_xlabel(f"{name} (log scale)" if log_scale(axes.xaxis, seen, most=5) else name)
    panels[0].set_ylabel(label)
    _legend(figure, panels[0])
    return figure


def legend_columns(labels: Sequence[str]) -> int:
    """Return how many entries fit beside each other above a figure."""
    longest = max((len(shortened(label)) for label in labels), default=1)
    return max(1, min(6, len(labels), int(_WIDTH / (0.75 + 0.075 * longest))))


def legend_rows(labels: Sequence[str]) -> int:
    """Return the number of rows of a legend."""
    return math.ceil(len(labels) / legend_columns(labels))


def _legend(figure: Any, axes: Any) -> None:
    lines, labels = axes.get_legend_handles_labels()
    columns = legend_columns(labels)
    texts = [shortened(label) for label in labels]
    figure.legend(lines, texts, loc="outside upper left", ncols=columns, frameon=False, handlelength=3.2)


def _middle_half(records: Sequence[RoundRecord]) -> Sequence[RoundRecord]:
    """Return the records without the fastest and the slowest quarter of the rounds."""
    ordered, quarter = sorted(records, key=lambda record: record.timing.seconds), len(records) // 4
    return ordered[quarter : len(ordered) - quarter]


def stages(new: NewFigure, methods: Sequence[Method]) -> Any | None:
    """Plot the time of a typical round by stage, and rounds over time, both without the first round of a run.

    Methods without other rounds are left out.
    """
    styles = line_styles(method.label for method in methods)
    methods = [method for method in methods if any(len(run.records) > 1 for run in method.runs)]
    if not methods:
        return None
    figure = new(_WIDTH, max(2.6, 1.5 + 0.3 * len(methods)))
    bars, times = figure.subplots(1, 2, width_ratios=(3, 2))
    places, left = range(len(methods)), np.zeros(len(methods))
    records = [_middle_half([r for run in method.runs for r in run.records[1:]]) for method in methods]
    for stage, (colour, hatch) in STAGES.items():
        means = [np.mean([record.timing.stage_seconds.get(stage, 0.0) for record in found]) for found in records]
        bars.barh(places, means, left=left, height=0.62, label=stage, color=colour, hatch=hatch)
        left += means
    bars.set_yticks(places, [shortened(method.label) for method in methods])
    bars.invert_yaxis()
    bars.set_xlabel("seconds per round")
    bars.grid(axis="y", visible=False)
    for method in methods:
        _draw_times(times, method, styles[method.label])
    times.set(xlabel="seconds since the end of the first round", ylabel="rounds completed")
    whole_numbers(times.yaxis)
    _legend(figure, bars)
    return figure


def _draw_times(axes: Any, method: Method, style: Mapping[str, str]) -> None:
    """Plot rounds against the mean time over the seeds. The band of one standard deviation is horizontal.

    It does not extend to the left of the fastest run, so that no time is negative.
    """
    runs = [run for run in method.runs if len(run.records) > 1]
    rounds = min((run.rounds for run in runs), key=len)
    times = np.array([run.elapsed[: len(rounds)] for run in runs])
    times -= times[:, :1]
    mean = times.mean(axis=0)
    axes.plot(mean, rounds, **style)
    if len(runs) > 1:
        deviation = times.std(axis=0, ddof=1)
        fastest = np.maximum(mean - deviation, times.min(axis=0))
        axes.fill_betweenx(rounds, fastest, mean + deviation, color=style["color"], alpha=BAND_ALPHA, linewidth=0)


def by_block(
    new: NewFigure, methods: Sequence[Method], values: Callable[[Run], Sequence[Sequence[float | None]]], label: str
) -> Any | None:
    """Draw one heat map per method, of its first run: rounds on the x axis, blocks on the y axis.

    All are on one logarithmic scale.
    """
    runs = [method.first for method in methods[:_MAX_HEAT_MAPS]]
    tables = [np.array(values(run), dtype=float).T for run in runs]
    known = np.concatenate([np.empty(0), *(table[table > 0] for table in tables)])
    if not known.size:
        return None
    low, high = _colour_range(float(known.min()), float(known.max()))
    columns = min(len(tables), 3 if len(tables) > 4 else 4)
    rows = math.ceil(len(tables) / columns)
    figure = new(_WIDTH, 0.7 + 1.9 * rows)
    for k, table in enumerate(tables):
        axes = figure.add_subplot(rows, columns, k + 1, title=shortened(runs[k].label), xlabel="round")
        blocks, rounds = table.shape
        extent = (0.5, rounds + 0.5, -0.5, blocks - 0.5)
        positive = np.where(table > 0, table, np.nan)
        image = heat_map(axes, positive, norm="log", vmin=low, vmax=high, extent=extent)
        ticks = range(blocks - 1, -1, -max(1, blocks // 8))
        axes.set_yticks(ticks, [block_name(tick, blocks) for tick in ticks])
        whole_numbers(axes.xaxis)
    figure.axes[0].set_ylabel("block")
    bar = figure.colorbar(image, ax=figure.axes, label=f"{label} (log scale)", pad=0.01)
    levels = log_ticks(low, high, 6)
    bar.set_ticks(levels if len(levels) >= 3 else even_ticks(low, high, 5), minor=False)
    bar.minorticks_off()
    bar.ax.yaxis.set_major_formatter(plain_number)
    _note(figure, _shown_runs(methods))
    return figure


def _shown_runs(methods: Sequence[Method]) -> str:
    """Return which runs have a heat map, or an empty text if all of them do."""
    shown, runs = min(len(methods), _MAX_HEAT_MAPS), sum(len(method.runs) for method in methods)
    if runs == len(methods):
        return _first(shown, runs, "runs")
    which = _first(shown, len(methods), "methods")
    seeds = f"{which}, one seed each" if which else "one seed per method"
    return f"{seeds} ({shown} of {runs} runs)"


def _colour_range(low: float, high: float) -> tuple[float, float]:
    """Return the ends of a colour scale, at least `_LEAST_FACTOR` apart, so that rounding errors are invisible."""
    middle = math.sqrt(low) * math.sqrt(high)
    return min(low, middle / _LEAST_FACTOR**0.5), max(high, middle * _LEAST_FACTOR**0.5)


def _first(shown: int, count: int, what: str) -> str:
    return f"the first {shown} of {count} {what}" if shown < count else ""


def _note(figure: Any, text: str) -> None:
    if text:  # an empty label would take room too
        figure.supxlabel(text)


def uploads(new: NewFigure, methods: Sequence[Method]) -> Any | None:
    """Plot the floats uploaded per block, summed over all clients, as a mean over seeds.

    Return None if no run uploads anything, because the training is centralised.
    """
    from matplotlib.ticker import EngFormatter

    styles = line_styles(method.label for method in methods)
    methods = [method for method in methods if not method.first.pooled]
    if not methods:
        return None
    per_run = [[np.sum([r.blocks.upload_floats for r in run.records], axis=0) for run in m.runs] for m in methods]
    totals = [np.mean(found, axis=0) for found in per_run]
    blocks = max(len(total) for total in totals)
    figure = new(_WIDTH, 2.8 + 0.2 * legend_rows([method.label for method in methods]))
    axes = figure.subplots()
    width = 0.8 / len(methods)
    for k, (method, total) in enumerate(zip(methods, totals, strict=True)):
        places = np.arange(len(total)) + blocks - len(total) + (k - (len(methods) - 1) / 2) * width
        look = {"color": styles[method.label]["color"], "hatch": HATCHES[k % len(HATCHES)]}
        axes.bar(places, total, width * 0.92, label=method.label, edgecolor="white", **look)
    axes.set_xticks(range(blocks), [block_name(k, blocks) for k in range(blocks)])
    axes.set(xlabel="block", ylabel="floats uploaded")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="x", visible=False)
    _legend(figure, axes)
    return figure


def partitions(new: NewFigure, runs: Sequence[Run]) -> Any | None:
    """Plot the labels per client, for each partition and data phase. None if no run recorded them."""
    labels: dict[PartitionRecord, list[str]] = {}
    for run in runs:
        if run.partition is not None:
            labels.setdefault(run.partition, []).append(run.label)
    phases = [(record, phase) for record in labels for phase in range(len(record.counts))]
    if not phases:
        return None
    shown = phases[:_MAX_PARTITIONS]
    figure = new(_WIDTH, 0.6 + 2.4 * len(shown))
    for k, (record, phase) in enumerate(shown):
        axes = figure.add_subplot(len(shown), 1, k + 1)
        title = f"{record.dataset}, data phase {phase}" if len(record.counts) > 1 else record.dataset
        axes.set_title(f"{title} ({_together(labels[record])})" if len(labels) > 1 else title)
        highest = np.max(record.counts)
        counts = np.array(record.counts[phase])
        image = label_map(axes, counts, record.shown, record.clients, highest, record.label, record.names)
        figure.colorbar(image, ax=axes, label="samples", pad=0.01)
    _note(figure, _first(len(shown), len(phases), "partitions"))
    return figure


def _together(labels: Sequence[str]) -> str:
    """Return a few names, or the first one and how many more there are."""
    return ", ".join(labels) if len(labels) <= 3 else f"{labels[0]} and {len(labels) - 1} more"


def failures(new: NewFigure, methods: Sequence[Method]) -> Any | None:
    """Plot the cumulative number of failures by kind, as a mean over seeds. None if there are none."""
    if not any(run.had_failures for method in methods for run in method.runs):
        return None
    figure = new(_WIDTH, 2.6 + 0.2 * legend_rows([method.label for method in methods]))
    kinds = list(methods[0].first.failures)
    panels, styles = figure.subplots(1, len(kinds)), line_styles(method.label for method in methods)
    for axes, kind in zip(panels, kinds, strict=True):
        for method in methods:
            curves = [(run.rounds, list(accumulate(run.failures[kind]))) for run in method.runs]
            draw_curve(axes, curves, method.label, styles[method.label])
        axes.set(title=kind, xlabel="round")
        axes.set_ylim(bottom=0)
        whole_numbers(axes.xaxis)
        whole_numbers(axes.yaxis)
    panels[0].set_ylabel("total so far")
    _legend(figure, panels[0])
    return figure
