"""The figures of a report. All runs share axes. A function returns None if there is nothing to show."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from raybcgd.record.partition import PartitionRecord
from raybcgd.report.heat_map import label_map
from raybcgd.report.runs import Run
from raybcgd.report.style import HATCHES, STAGES, NewFigure, heat_map, mark_target, plain_numbers

_MAX_HEAT_MAPS = 12
_MAX_PARTITIONS = 6
_WIDTH = 11.5


def accuracy(new: NewFigure, runs: Sequence[Run], target: float) -> Any | None:
    """Plot accuracy against rounds, uploaded floats and uploaded bytes."""
    if not any(run.evaluated for run in runs):
        return None
    figure = _against_all(new, runs, lambda run: [100 * value for value in run.accuracies], "test accuracy, %")
    mark_target(figure.axes, target)
    return figure


def loss(new: NewFigure, runs: Sequence[Run]) -> Any | None:
    """Plot loss against rounds, uploaded floats and uploaded bytes."""
    if not any(record.quality.loss for run in runs for record in run.evaluated):
        return None
    figure = _against_all(new, runs, lambda run: [r.quality.loss for r in run.evaluated], "test loss (log scale)")
    axes = figure.axes[0]  # the others share its y axis
    axes.set_yscale("log")
    plain_numbers(axes.yaxis)
    return figure


def _against_all(new: NewFigure, runs: Sequence[Run], y: Callable[[Run], Sequence[float | None]], label: str) -> Any:
    figure = new(_WIDTH, 3.5)
    panels = figure.subplots(1, 3, sharey=True)
    for run in runs:
        for axes, x in zip(panels, (run.rounds, run.floats, run.bytes), strict=True):
            axes.plot([x[record.round] for record in run.evaluated], y(run), label=run.label)
    panels[0].set(xlabel="rounds", ylabel=label)
    panels[1].set(xlabel="floats uploaded by all clients (log scale)", xscale="log")
    panels[2].set(xlabel="bytes uploaded by all clients (log scale)", xscale="log")
    _legend(figure, panels[0])
    return figure


def _legend(figure: Any, axes: Any) -> None:
    entries = axes.get_legend_handles_labels()
    figure.legend(*entries, loc="outside upper left", ncols=6, frameon=False, handlelength=3.2)


def stages(new: NewFigure, runs: Sequence[Run]) -> Any:
    """Plot the mean time per round by stage, and rounds over time."""
    figure = new(_WIDTH, 1.5 + 0.42 * len(runs))
    bars, times = figure.subplots(1, 2, width_ratios=(3, 2))
    places, left = range(len(runs)), np.zeros(len(runs))
    for stage, (colour, hatch) in STAGES.items():
        means = [np.mean([r.timing.stage_seconds.get(stage, 0.0) for r in run.records]) for run in runs]
        bars.barh(places, means, left=left, height=0.62, label=stage, color=colour, hatch=hatch)
        left += means
    bars.set_yticks(places, [run.label for run in runs])
    bars.invert_yaxis()
    bars.set_xlabel("mean seconds per round")
    bars.grid(axis="y", visible=False)
    for run in runs:
        times.plot(run.elapsed, run.rounds)
    times.set(xlabel="seconds", ylabel="rounds completed")
    _legend(figure, bars)
    return figure


def by_block(
    new: NewFigure, runs: Sequence[Run], values: Callable[[Run], Sequence[Sequence[float | None]]], label: str
) -> Any | None:
    """Draw one heat map per run: rounds on the x axis, blocks on the y axis, all on one logarithmic scale."""
    tables = [np.array(values(run), dtype=float).T for run in runs[:_MAX_HEAT_MAPS]]
    known = np.concatenate([table[table > 0] for table in tables])
    if not known.size:
        return None
    columns = min(len(tables), 3 if len(tables) > 4 else 4)
    rows = math.ceil(len(tables) / columns)
    figure = new(_WIDTH, 0.7 + 1.9 * rows)
    for k, table in enumerate(tables):
        axes = figure.add_subplot(rows, columns, k + 1, title=runs[k].label, xlabel="round")
        blocks, rounds = table.shape
        extent = (0.5, rounds + 0.5, -0.5, blocks - 0.5)
        positive = np.where(table > 0, table, np.nan)
        image = heat_map(axes, positive, norm="log", vmin=known.min(), vmax=known.max(), extent=extent)
        ticks = range(blocks - 1, -1, -max(1, blocks // 8))
        axes.set_yticks(ticks, [block_name(tick, blocks) for tick in ticks])
    figure.axes[0].set_ylabel("block")
    plain_numbers(figure.colorbar(image, ax=figure.axes, label=label, pad=0.01).ax.yaxis)
    _note_limit(figure, len(tables), len(runs), "runs")
    return figure


def _note_limit(figure: Any, shown: int, count: int, what: str) -> None:
    if shown < count:
        figure.supxlabel(f"the first {shown} of {count} {what}")


def block_name(k: int, blocks: int) -> str:
    """Return the name of block k. The last one is the shared block."""
    return "shared" if k == blocks - 1 else str(k)


def uploads(new: NewFigure, runs: Sequence[Run]) -> Any:
    """Plot the floats uploaded per block, summed over all clients."""
    from matplotlib.ticker import EngFormatter

    totals = [np.sum([r.blocks.upload_floats for r in run.records], axis=0) for run in runs]
    blocks = max(len(total) for total in totals)
    figure = new(_WIDTH, 3.0)
    axes = figure.subplots()
    width = 0.8 / len(runs)
    for k, (run, total) in enumerate(zip(runs, totals, strict=True)):
        places = np.arange(len(total)) + blocks - len(total) + (k - (len(runs) - 1) / 2) * width
        axes.bar(places, total, width * 0.92, label=run.label, hatch=HATCHES[k % len(HATCHES)])
    axes.set_xticks(range(blocks), [block_name(k, blocks) for k in range(blocks)])
    axes.set(xlabel="block", ylabel="floats uploaded")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="x", visible=False)
    _legend(figure, axes)
    return figure


def partitions(new: NewFigure, runs: Sequence[Run]) -> Any | None:
    """Plot the labels per client, for each partition and data phase. None if no run recorded them."""
    labels: dict[PartitionRecord, str] = {}
    for run in runs:
        if run.partition is not None:
            labels.setdefault(run.partition, run.label)
    phases = [(record, phase) for record in labels for phase in range(len(record.counts))]
    if not phases:
        return None
    shown = phases[:_MAX_PARTITIONS]
    figure = new(_WIDTH, 0.6 + 2.4 * len(shown))
    for k, (record, phase) in enumerate(shown):
        axes = figure.add_subplot(len(shown), 1, k + 1)
        title = f"{record.dataset}, data phase {phase}" if len(record.counts) > 1 else record.dataset
        axes.set_title(f"{title} ({labels[record]})" if len(labels) > 1 else title)
        highest = np.max(record.counts)
        image = label_map(axes, np.array(record.counts[phase]), record.shown, record.clients, highest)
        figure.colorbar(image, ax=axes, label="samples", pad=0.01)
    _note_limit(figure, len(shown), len(phases), "partitions")
    return figure


def failures(new: NewFigure, runs: Sequence[Run]) -> Any | None:
    """Plot the cumulative number of failures by kind. None if there are none."""
    if not any(run.failed for run in runs):
        return None
    figure = new(_WIDTH, 2.8)
    panels = figure.subplots(1, len(runs[0].failures))
    for run in runs:
        for axes, (name, counts) in zip(panels, run.failures.items(), strict=True):
            axes.plot(run.rounds, list(accumulate(counts)), label=run.label)
            axes.set(title=name, xlabel="round")
            axes.set_ylim(bottom=0)
    panels[0].set_ylabel("total so far")
    _legend(figure, panels[0])
    return figure
