"""The figures of a report. All runs share axes; a figure with nothing to show is None."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from raybcgd.report.heat_map import label_map
from raybcgd.report.runs import Run
from raybcgd.report.style import (
    STAGES,
    New,
    bar_style,
    heat_map,
    line_style,
    mark_target,
    name_target,
    plain_numbers,
    stage_style,
)

MAX_HEAT_MAPS = 12
MAX_PHASES = 6
_WIDTH = 11.5


def accuracy(new: New, runs: Sequence[Run], target: float) -> Any:
    """Draw accuracy against rounds, uploaded floats and uploaded bytes."""
    figure = _against_all(new, runs, lambda run: [100 * value for value in run.accuracies], "test accuracy, %")
    for axes in figure.axes:
        mark_target(axes, target)
    name_target(figure.axes[0], target, right=True)
    return figure


def loss(new: New, runs: Sequence[Run]) -> Any:
    """Draw loss against rounds, uploaded floats and uploaded bytes."""
    figure = _against_all(new, runs, _losses, "test loss (log scale)")
    for axes in figure.axes:
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
    return figure


def _losses(run: Run) -> list[float]:
    return [math.nan if record.quality.loss is None else record.quality.loss for record in run.evaluated]


def _against_all(new: New, runs: Sequence[Run], y: Callable[[Run], list[float]], label: str) -> Any:
    figure = new(_WIDTH, 3.5)
    panels = figure.subplots(1, 3, sharey=True)
    scales: dict[str, Callable[[Run], Sequence[int]]] = {
        "rounds": lambda run: range(1, len(run.records) + 1),
        "floats uploaded by all clients (log scale)": lambda run: run.floats,
        "bytes uploaded by all clients (log scale)": lambda run: run.bytes,
    }
    for axes, (name, x) in zip(panels, scales.items(), strict=True):
        for k, run in enumerate(runs):
            axes.plot([x(run)[record.round] for record in run.evaluated], y(run), label=run.label, **line_style(k))
        axes.set_xlabel(name)
    for axes in panels[1:]:
        axes.set_xscale("log")
    panels[0].set_ylabel(label)
    _legend(figure, panels[0])
    return figure


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=min(len(labels), 6), frameon=False, handlelength=3.2)


def stages(new: New, runs: Sequence[Run]) -> Any:
    """Draw the mean time per round by stage, and rounds over time."""
    figure = new(_WIDTH, 1.5 + 0.42 * len(runs))
    bars, times = figure.subplots(1, 2, width_ratios=(3, 2))
    places = np.arange(len(runs))[::-1]
    left = np.zeros(len(runs))
    for stage in STAGES:
        means = [np.mean([r.timing.stage_seconds.get(stage, 0.0) for r in run.records]) for run in runs]
        bars.barh(places, means, left=left, height=0.62, label=stage, **stage_style(stage))
        left += means
    bars.set_yticks(places, [run.label for run in runs])
    bars.set_xlabel("mean seconds per round")
    bars.grid(axis="y", visible=False)
    for k, run in enumerate(runs):
        elapsed = list(accumulate(record.timing.seconds for record in run.records))
        times.plot(elapsed, range(1, len(run.records) + 1), **line_style(k))
    times.set_xlabel("seconds")
    times.set_ylabel("rounds completed")
    _legend(figure, bars)
    return figure


def by_block(
    new: New, runs: Sequence[Run], values: Callable[[Run], Sequence[Sequence[float | None]]], label: str
) -> Any | None:
    """Draw one heat map per run: rounds on the x axis, blocks on the y axis, all on one logarithmic scale."""
    from matplotlib.colors import LogNorm, Normalize

    tables = {run.label: table for run in runs[:MAX_HEAT_MAPS] if (table := _table(values(run))) is not None}
    known = np.concatenate([table[np.isfinite(table)] for table in tables.values()]) if tables else np.empty(0)
    if not len(known):
        return None
    low, high = float(known.min()), float(known.max())
    norm = LogNorm(low, high) if low < high else Normalize(low, high)
    columns = min(len(tables), 3 if len(tables) > 4 else 4)
    lines = -(-len(tables) // columns)
    figure = new(_WIDTH, 0.7 + 1.9 * lines)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, (name, table) in zip(panels, tables.items(), strict=False):
        blocks, rounds = table.shape
        extent = (0.5, rounds + 0.5, -0.5, blocks - 0.5)
        image = heat_map(axes, np.ma.masked_invalid(table), norm=norm, extent=extent)
        axes.set_facecolor("#dddddd")
        axes.set_title(name)
        axes.set_yticks(_ticks(blocks), [block_name(k, blocks) for k in _ticks(blocks)])
        axes.set_xlabel("round")
    for axes in panels[len(tables) :]:
        axes.set_visible(False)
    plain_numbers(figure.colorbar(image, ax=panels.tolist(), label=label, pad=0.01).ax.yaxis)
    panels[0].set_ylabel("block")
    return figure


def _table(rows: Sequence[Sequence[float | None]]) -> np.ndarray | None:
    """Return values by block and round, NaN if not positive; None if there are no values or blocks were added."""
    if not rows[0] or len({len(row) for row in rows}) != 1:
        return None
    table = np.array([[np.nan if v is None else float(v) for v in row] for row in rows]).T
    return np.where(table > 0, table, np.nan)


def _ticks(blocks: int) -> list[int]:
    step = max(1, blocks // 8)
    return sorted({*range(0, blocks - 1, step), blocks - 1})


def block_name(k: int, blocks: int) -> str:
    """Return the name of block k. The last one is the shared block."""
    return "shared" if k == blocks - 1 else str(k)


def uploads(new: New, runs: Sequence[Run]) -> Any:
    """Draw the floats uploaded by all clients per block."""
    from matplotlib.ticker import EngFormatter

    totals = {run.label: np.sum([r.blocks.upload_floats for r in run.records], axis=0) for run in runs}
    blocks = max(len(total) for total in totals.values())
    figure = new(_WIDTH, 3.0)
    axes = figure.subplots()
    width = 0.8 / len(runs)
    for k, (name, total) in enumerate(totals.items()):
        places = np.arange(len(total)) + blocks - len(total) + (k - (len(runs) - 1) / 2) * width
        axes.bar(places, total, width * 0.92, label=name, **bar_style(k))
    axes.set_xticks(range(blocks), [block_name(k, blocks) for k in range(blocks)])
    axes.set_xlabel("block")
    axes.set_ylabel("floats uploaded")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="x", visible=False)
    _legend(figure, axes)
    return figure


def partition(new: New, run: Run) -> Any | None:
    """Draw the labels per client."""
    record = run.partition
    if record is None:
        return None
    phases = record.counts[:MAX_PHASES]
    figure = new(_WIDTH, 0.6 + 2.4 * len(phases))
    panels = figure.subplots(len(phases), 1, squeeze=False).ravel()
    most = max(1, max(max(row, default=0) for counts in phases for row in counts))
    for number, (axes, counts) in enumerate(zip(panels, phases, strict=True)):
        image = label_map(axes, np.array(counts), record.shown, record.clients, most)
        axes.label_outer()
        if len(record.counts) > 1:
            axes.set_title(f"data phase {number}")
    figure.colorbar(image, ax=panels.tolist(), label="samples", pad=0.01)
    return figure


def failures(new: New, runs: Sequence[Run]) -> Any | None:
    """Draw the cumulative number of failures by kind; None if there are none."""
    if not any(any(counts) for run in runs for counts in run.failures.values()):
        return None
    figure = new(_WIDTH, 2.8)
    panels = figure.subplots(1, len(runs[0].failures))
    for k, run in enumerate(runs):
        for axes, (name, counts) in zip(panels, run.failures.items(), strict=True):
            axes.plot(range(1, len(counts) + 1), list(accumulate(counts)), label=run.label, **line_style(k))
            axes.set_title(name)
            axes.set_xlabel("round")
            axes.set_ylim(bottom=0)
    panels[0].set_ylabel("total so far")
    _legend(figure, panels[0])
    return figure
