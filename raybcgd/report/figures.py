"""The figures of a report. Several runs share axes; a figure that has nothing to show is left out."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from raybcgd.report.runs import Run
from raybcgd.report.style import COLOURS, HATCHES, PHASE_COLOURS, line_style

New = Callable[[float, float], Any]
"""Makes a figure of so many inches."""
_WIDTH = 11.5
_MOST_HEAT_MAPS = 12


def accuracy(new: New, runs: Sequence[Run], target: float) -> Any:
    """Against rounds, uploaded floats and uploaded bytes."""
    figure = _against_all(new, runs, lambda run: [100 * a for a in run.accuracies], "test accuracy, %")
    for axes in figure.axes:
        axes.axhline(100 * target, color="#888888", linewidth=0.9, linestyle=(0, (2, 2)), zorder=0)
        axes.set_ylim(0, 101)
    figure.axes[0].annotate(
        f"target {100 * target:g} %",
        (0.99, 100 * target),
        (0, -11),
        ha="right",
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        fontsize=8,
        color="#555555",
    )
    return figure


def loss(new: New, runs: Sequence[Run]) -> Any:
    """Against the same."""
    figure = _against_all(
        new, runs, lambda run: [float(run.records[k].loss or 0.0) for k in run.judged], "test loss (log scale)"
    )
    for axes in figure.axes:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    return figure


def _against_all(new: New, runs: Sequence[Run], y: Callable[[Run], list[float]], label: str) -> Any:
    figure = new(_WIDTH, 3.5)
    panels = figure.subplots(1, 3, sharey=True)
    against: list[tuple[str, Callable[[Run], Sequence[float]]]] = [
        ("rounds", lambda run: range(1, len(run.records) + 1)),
        ("floats uploaded by all clients", lambda run: run.floats),
        ("bytes uploaded by all clients", lambda run: run.bytes),
    ]
    for axes, (name, x) in zip(panels, against, strict=True):
        for k, run in enumerate(runs):
            there = x(run)
            axes.plot([there[j] for j in run.judged], y(run), label=run.label, **line_style(k))
        axes.set_xlabel(name)
        if name != "rounds":
            axes.set_xscale("log")
            axes.set_xlabel(f"{name} (log scale)")
    panels[0].set_ylabel(label)
    _legend(figure, panels[0])
    return figure


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=min(len(labels), 6), frameon=False, handlelength=3.2)


def phases(new: New, runs: Sequence[Run]) -> Any:
    """Mean seconds of a round by phase, and rounds over time."""
    figure = new(_WIDTH, 1.5 + 0.42 * len(runs))
    bars, times = figure.subplots(1, 2, width_ratios=(3, 2))
    places = np.arange(len(runs))[::-1]
    left = np.zeros(len(runs))
    for phase, colour in PHASE_COLOURS.items():
        means = np.array([np.mean([r.phase_seconds.get(phase, 0.0) for r in run.records]) for run in runs])
        bars.barh(
            places,
            means,
            left=left,
            height=0.62,
            color=colour,
            label=phase,
            hatch=HATCHES.get(phase),
            edgecolor="white",
            linewidth=0.3,
        )
        left += means
    bars.set_yticks(places, [run.label for run in runs])
    bars.set_xlabel("mean seconds of a round")
    bars.grid(axis="y", visible=False)
    for k, run in enumerate(runs):
        elapsed = list(accumulate(record.seconds for record in run.records))
        times.plot(elapsed, range(1, len(run.records) + 1), **line_style(k))
    times.set_xlabel("seconds")
    times.set_ylabel("rounds done")
    _legend(figure, bars)
    return figure


def by_block(
    new: New, runs: Sequence[Run], values: Callable[[Run], Sequence[Sequence[float | None]]], label: str, log: bool
) -> Any | None:
    """A heat map a run: rounds across, blocks up, on one scale."""
    from matplotlib.colors import LogNorm, Normalize

    drawn = runs[:_MOST_HEAT_MAPS]
    tables = {run.label: table for run in drawn if (table := _table(values(run), log)) is not None}
    if not tables:
        return None
    known = np.concatenate([table[np.isfinite(table)] for table in tables.values()])
    if not len(known):
        return None
    low, high = float(known.min()), float(known.max())
    norm = LogNorm(low, high) if log and low < high else Normalize(low, high)
    columns = min(len(tables), 3 if len(tables) > 4 else 4)
    lines = -(-len(tables) // columns)
    figure = new(_WIDTH, 0.7 + 1.9 * lines)
    panels = np.atleast_1d(figure.subplots(lines, columns, squeeze=False)).ravel()
    for axes, (name, table) in zip(panels, tables.items(), strict=False):
        blocks, rounds = table.shape
        image = axes.imshow(
            np.ma.masked_invalid(table),
            aspect="auto",
            origin="lower",
            interpolation="nearest",
            cmap="cividis",
            norm=norm,
            extent=(0.5, rounds + 0.5, -0.5, blocks - 0.5),
        )
        axes.set_facecolor("#dddddd")
        axes.grid(visible=False)
        axes.set_title(name)
        axes.set_yticks(_ticks(blocks), [_block_name(k, blocks) for k in _ticks(blocks)])
        axes.set_xlabel("round")
    for axes in panels[len(tables) :]:
        axes.set_visible(False)
    scale = figure.colorbar(image, ax=panels.tolist(), label=label, pad=0.01).ax.yaxis
    scale.set_major_formatter(lambda value, _: f"{value:g}")
    scale.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    panels[0].set_ylabel("block")
    return figure


def _table(rows: Sequence[Sequence[float | None]], log: bool) -> np.ndarray | None:
    """Blocks by rounds; None where there is nothing, or where the number of blocks has changed.

    What cannot be drawn, on a logarithmic scale also what is not positive, is not a number.
    """
    if not rows or not rows[0] or len({len(row) for row in rows}) != 1:
        return None
    table = np.array([[np.nan if v is None else float(v) for v in row] for row in rows]).T
    return np.where(table > 0, table, np.nan) if log else table


def _ticks(blocks: int) -> list[int]:
    step = max(1, blocks // 8)
    return sorted({*range(0, blocks - 1, step), blocks - 1})


def _block_name(k: int, blocks: int) -> str:
    return "shared" if k == blocks - 1 else str(k)


def uploads(new: New, runs: Sequence[Run]) -> Any:
    """What all clients have uploaded of each block."""
    from matplotlib.ticker import EngFormatter

    totals = {run.label: np.sum([r.upload_floats_by_block for r in run.records], axis=0) for run in runs}
    blocks = max(len(total) for total in totals.values())
    figure = new(_WIDTH, 3.0)
    axes = figure.subplots()
    width = 0.8 / len(runs)
    for k, (name, total) in enumerate(totals.items()):
        places = np.arange(len(total)) + blocks - len(total) + (k - (len(runs) - 1) / 2) * width
        hatch = (None, "////", "....", "\\\\\\\\", "xxxx")[k % 5]
        axes.bar(
            places, total, width * 0.92, label=name, color=COLOURS[k % len(COLOURS)], hatch=hatch, edgecolor="white"
        )
    axes.set_xticks(range(blocks), [_block_name(k, blocks) for k in range(blocks)])
    axes.set_xlabel("block")
    axes.set_ylabel("floats uploaded")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="x", visible=False)
    _legend(figure, axes)
    return figure


def partition(new: New, run: Run) -> Any | None:
    """Who has which labels."""
    record = run.partition
    if record is None:
        return None
    phases_shown = record.counts[:6]
    figure = new(_WIDTH, 0.6 + 2.4 * len(phases_shown))
    panels = figure.subplots(len(phases_shown), 1, squeeze=False).ravel()
    most = max(1, max(max(row, default=0) for counts in phases_shown for row in counts))
    for number, (axes, counts) in enumerate(zip(panels, phases_shown, strict=True)):
        image = axes.imshow(
            np.array(counts).T,
            aspect="auto",
            origin="lower",
            interpolation="nearest",
            cmap="cividis",
            vmin=0,
            vmax=most,
        )
        axes.grid(visible=False)
        axes.set_ylabel("label")
        if len(record.counts) > 1:
            axes.set_title(f"data phase {number}")
    shown = len(record.shown)
    ticks = np.unique(np.linspace(0, shown - 1, min(shown, 11)).round().astype(int))
    for axes in panels:
        axes.set_xticks(ticks.tolist(), [str(record.shown[t]) for t in ticks])
    every = "client" if shown == record.clients else f"client ({shown} of {record.clients:,}, evenly spaced)"
    panels[-1].set_xlabel(every)
    figure.colorbar(image, ax=panels.tolist(), label="samples", pad=0.01)
    return figure


FAILURES = ("clients dropped", "jobs retried", "clients re-homed", "hosts restarted")


def failure_counts(run: Run) -> list[list[int]]:
    """For every kind of failure, how many in each round."""
    records = run.records
    return [
        [len(record.dropped) for record in records],
        [record.retried for record in records],
        [record.rehomed for record in records],
        [record.restarted for record in records],
    ]


def failures(new: New, runs: Sequence[Run]) -> Any | None:
    """What went wrong, and when; None where nothing did."""
    if not any(sum(counts) for run in runs for counts in failure_counts(run)):
        return None
    figure = new(_WIDTH, 2.8)
    panels = figure.subplots(1, len(FAILURES))
    for k, run in enumerate(runs):
        for axes, name, counts in zip(panels, FAILURES, failure_counts(run), strict=True):
            axes.plot(range(1, len(counts) + 1), list(accumulate(counts)), label=run.label, **line_style(k))
            axes.set_title(name)
            axes.set_xlabel("round")
            axes.set_ylim(bottom=0)
    panels[0].set_ylabel("so far")
    _legend(figure, panels[0])
    return figure
