"""Tables for the terminal and for Markdown files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.filesize import decimal
from rich.table import Table

from raybcgd.config import Config
from raybcgd.data.partition import Partitioner
from raybcgd.data.settings import SOURCES
from raybcgd.model.settings import MODELS
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.summary import Standing
from raybcgd.report.bars import counted
from raybcgd.report.style import percentage, shown_d


def conditions(
    config: Config, first: RoundRecord, dataset: str | None = None, seeds: Sequence[int] | None = None
) -> str:
    """Return the conditions of a comparison as text. `dataset` is the name of the data. Default: its source."""
    seeds = seeds or [config.seed]
    seed = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    data, split = config.data, config.data.partition
    assert isinstance(split, Partitioner)
    return (
        f"{MODELS.name_of(config.model.name)} on {dataset or SOURCES.name_of(data.source)}, {split.clients} clients, "
        f"{f'{data.phases.count} data phases' if data.phases else split.label}, "
        f"{counted(len(first.participants) + len(first.dropped), 'client')} per round, {seed}"
    )


_DROPPED_FIRST = ("s/round", "best", "d/round", "d total")
_SHORTEST_NAME = 10
"""Minimum width of the column of methods, however narrow the terminal is."""
UNIT = "d is the model size; columns in d show the mean upload per client."
MEDIAN = "Time per round is the median without the first round, which has one-off costs such as imports."


def comparison_table(lines: Sequence[Standing], target: float, width: int = 120) -> Table:
    """Return a comparison as a table for the terminal. The run with the least upload to the target is bold.

    If the terminal is narrow, the columns of `_DROPPED_FIRST` are left out; `comparison.md` has all of them.
    """
    title = f"{'Loss' if _only_losses(lines) else 'Accuracy'}, and mean upload per client in units of d: bytes / (4 d)"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    rows = _rows(lines, target)
    needs = {name: max(len(text) for row in rows for text in (row[name], name)) for name in rows[0]}
    for name in _DROPPED_FIRST:
        if sum(needs.values()) + 2 * len(needs) + 2 > width:
            needs = {kept: need for kept, need in needs.items() if not kept.startswith(name)}
    room = width - (sum(needs.values()) - needs["method"] + 2 * len(needs))
    widest = min(needs["method"], max(room, _SHORTEST_NAME))  # a longer name continues on the next line
    table.add_column("method", min_width=widest, max_width=widest)
    for name in list(needs)[1:]:
        table.add_column(name, justify="right", min_width=needs[name], no_wrap=True)
    costs = [None if line.pooled else line.upload_d_to_target for line in lines]
    cheapest = min((shown_d(cost) for cost in costs if cost is not None), key=float, default=None)
    for cost, row in zip(costs, rows, strict=True):
        best = cost is not None and shown_d(cost) == cheapest  # equal texts are equally bold
        table.add_row(*(row[name] for name in needs), style="bold" if best else None)
    table.caption = "\n".join([*notes(lines, target), *([MEDIAN] if "s/round" in needs else [])]) or None
    table.caption_justify = "left"
    return table


def comparison_markdown(lines: Sequence[Standing], target: float, details: bool = True) -> str:
    """Return a comparison as a Markdown table, with `details` also final accuracies, upload totals and settings."""
    rows = _rows(lines, target, details)
    texts = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    below = " ".join([UNIT, MEDIAN, *notes(lines, target)])  # a line that starts with a star would be a list
    reasons = "".join(f"\n{_failure(line)}\n" for line in lines if line.failures)
    return "".join(f"| {' | '.join(row)} |\n" for row in texts) + f"\n{below}\n{reasons}"


def _failure(line: Standing) -> str:
    """Return why runs of a method failed. Seeds often fail for the same reason."""
    which = f" ({len(line.failures)} of {len(line.seeds)} seeds)" if line.seeds else ""
    return f"{line.label}{which} failed: {'; '.join(dict.fromkeys(line.failures))}"


def notes(lines: Sequence[Standing], target: float) -> list[str]:
    """Return one sentence for each mark in the table of a comparison, and for each limit that ended runs early."""
    goal, found = percentage(target), []
    if any(falls_back(line, target) for line in lines):
        found.append(f"* {goal} is reached, but the mean of the last tenth is below it.")
    partial = [not_reached(line) for line in lines if line.reached and line.upload_d_to_target is None]
    if partial:
        found.append(f"{partial[0]}: only these reach {goal}, so there is no mean.")
    if any(line.last_tenth_deviation is not None for line in lines):
        found.append("± is one standard deviation over the seeds.")
    pooled = ", ".join(line.label for line in lines if line.pooled)
    if pooled:
        found.append(f"{pooled}: the data is in one place: there is no federated upload, and no drift.")
    limits = dict.fromkeys(limit for line in lines for limit in line.ended_by)
    ended = {limit: ", ".join(line.label for line in lines if limit in line.ended_by) for limit in limits}
    return found + [f"Ended early: {labels} ({limit})." for limit, labels in ended.items()]


def falls_back(line: Standing, target: float) -> bool:
    """Return whether a method reaches the target, but its last tenth, which the tables show, is below it."""
    tail = line.last_tenth_accuracy
    return line.rounds_to_target is not None and tail is not None and tail < target


def not_reached(line: Standing) -> str:
    """Return what a table shows if there is no mean over the seeds, because not all of them reach the target."""
    return f"{line.reached} of {line.finished} seeds" if line.reached else "never"


def shown_rounds(line: Standing) -> str:
    """Return the rounds to the target. A mean over seeds has one decimal, like the upload."""
    rounds = line.rounds_to_target
    return not_reached(line) if rounds is None else f"{rounds:.{int(len(line.seeds) > 1)}f}"


def shown_seconds(seconds: float | None) -> str:
    """Return the time of a round with milliseconds if it is short."""
    return "-" if seconds is None else f"{seconds:.3f}" if seconds < 10 else f"{seconds:,.1f}"


def _only_losses(lines: Sequence[Standing]) -> bool:
    return all(line.regression for line in lines if line.rounds)


def _rows(lines: Sequence[Standing], target: float, details: bool = False) -> list[dict[str, str]]:
    """Return the rows of a comparison's table by heading. A regression has no columns about the target accuracy."""
    rows = [{**_cells(line, target), **(_more_cells(line, target) if details else {})} for line in lines]
    goal = f" to {percentage(target)}"
    if _only_losses(lines):
        rows = [{name: text for name, text in row.items() if not name.endswith(goal)} for row in rows]
    return rows


def _cells(line: Standing, target: float) -> dict[str, str]:
    """Return the cells of a row by heading."""
    goal, star = percentage(target), "*" if falls_back(line, target) else ""
    cost = line.upload_d_to_target
    lost = f" ({len(line.failures)} of {len(line.seeds)} seeds failed)" if line.failures and line.rounds else ""
    cells = {
        "method": line.label + lost,
        "last tenth": last_tenth_text(line),
        "best": shown_loss(line.best_loss) if line.regression else percent(line.best_accuracy),
        "d/round": f"{line.upload_d_per_round:.3f}",
        "d total": shown_d(line.upload_d_total),
        f"d to {goal}": not_reached(line) if cost is None else f"{shown_d(cost)}{star}",
        f"rounds to {goal}": "-" if line.rounds_to_target is None else shown_rounds(line),
        "s/round": shown_seconds(line.round_seconds_median),
    }
    if line.pooled:
        cells |= dict.fromkeys(("d/round", "d total", f"d to {goal}"), "-")
    return cells if line.rounds else {**dict.fromkeys(cells, "-"), "method": line.label, "last tenth": "failed"}


def _more_cells(line: Standing, target: float) -> dict[str, str]:
    goal = percentage(target)
    floats, size = line.upload_floats_to_target, line.upload_bytes_to_target
    cells = {
        "final": shown_loss(line.final_loss) if line.regression else percent(line.final_accuracy),
        "floats total": f"{line.upload_floats:,.0f}",
        f"floats to {goal}": not_reached(line) if floats is None else f"{floats:,.0f}",
        "bytes total": decimal(round(line.upload_bytes)),
        f"bytes to {goal}": not_reached(line) if size is None else decimal(round(size)),
        "settings": f"`{line.settings}`",
    }
    if line.pooled:
        cells |= {name: "-" for name in cells if name.startswith(("floats", "bytes"))}
    return cells if line.rounds else {**dict.fromkeys(cells, "-"), "settings": cells["settings"]}


def last_tenth_text(line: Standing) -> str:
    """Return the mean over the last tenth of the rounds, with its deviation over the seeds."""
    accuracy, deviation = line.last_tenth_accuracy, line.last_tenth_deviation
    if line.regression:
        return shown_loss(line.last_tenth_loss) + ("" if deviation is None else f" ± {deviation:.2g}")
    if accuracy is None or deviation is None:
        return percent(accuracy)
    return f"{100 * accuracy:.1f} ± {100 * deviation:.1f} %"


def run_table(label: str, summary: Mapping[str, Any], folder: Path) -> Table:
    """Return a run's summary as a table for the terminal."""
    table = Table(title=f"{label}: {counted(summary['rounds'], 'round')}", show_header=False, title_justify="left")
    rows = {
        **_quality(summary),
        **({"ended by": summary["ended_by"]} if summary.get("ended_by") else {}),
        "model": _size(summary),
        "upload per client": f"{summary['upload_d_total'] / max(1, summary['rounds']):.3f} d per round, "
        f"{shown_d(summary['upload_d_total'])} d in total",
        "upload, all clients": f"{summary['upload_floats']:,} floats, {decimal(summary['upload_bytes'])}",
        "download, all clients": f"{summary['download_floats']:,} floats, {decimal(summary['download_bytes'])}",
        "time": f"{summary['seconds']:.1f} s in rounds, {summary['round_seconds_median'] or 0:.3f} s per round "
        f"(median); {summary['total_seconds']:.1f} s with preparation, without imports",
        "weights": f"SHA-256 {summary['sha256'][:16]}…",
        "files": str(folder),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _quality(summary: Mapping[str, Any]) -> dict[str, str]:
    metrics = {name: f"{value:.4g} final" for name, value in summary.get("metrics", {}).items()}
    if summary["final_accuracy"] is None and summary["final_loss"] is not None:
        return {
            "loss": f"{shown_loss(summary['final_loss'])} final, {shown_loss(summary['best_loss'])} best",
            **metrics,
        }
    accuracy = f"{percent(summary['final_accuracy'])} final, {percent(summary['best_accuracy'])} best"
    return {"accuracy": accuracy, **metrics}


def _size(summary: Mapping[str, Any]) -> str:
    parameters, d = summary["parameters"], summary.get("d", summary["parameters"])
    return f"d = {d:,} parameters" if d == parameters else f"d = {d:,}: {parameters:,} parameters, and buffers"


def percent(value: float | None) -> str:
    """Return an accuracy with one decimal."""
    return "-" if value is None else f"{value:.1%}"


def shown_loss(value: float | None) -> str:
    """Return a loss with four digits."""
    return "-" if value is None else f"{value:.4g}"
