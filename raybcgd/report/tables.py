"""Tables for the terminal, for Markdown files and for the HTML page."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from rich.filesize import decimal
from rich.table import Table

from raybcgd.config import Config
from raybcgd.data.partition import Partitioner
from raybcgd.data.settings import SOURCES
from raybcgd.model.settings import MODELS
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.summary import Standing, last_tenth
from raybcgd.report.runs import Run
from raybcgd.report.style import percentage


def conditions(config: Config, first: RoundRecord, dataset: str | None = None) -> str:
    """Return the conditions of a comparison as text. `dataset` is the name of data passed as an object."""
    data, split = config.data, config.data.partition
    assert isinstance(split, Partitioner)
    return (
        f"{MODELS.name_of(config.model.name)} on {dataset or SOURCES.name_of(data.source)}, {split.clients} clients, "
        f"{f'{data.phases.count} data phases' if data.phases else split.label}, "
        f"{len(first.participants) + len(first.dropped)} clients per round, seed {config.seed}"
    )


# Terminal and Markdown


def comparison_table(lines: Sequence[Standing], target: float) -> Table:
    """Return a comparison as a table for the terminal. The run with the least upload to the target is bold."""
    table = Table(title="Accuracy, and mean upload per client in units of d: bytes / (4 d)", title_justify="left")
    for heading in _cells(lines[0], target):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=heading.startswith("d "))
    cheapest = min((line.upload_d_to_target for line in lines if line.upload_d_to_target is not None), default=math.nan)
    for line in lines:
        table.add_row(*_cells(line, target).values(), style="bold" if line.upload_d_to_target == cheapest else None)
    return table


def comparison_markdown(lines: Sequence[Standing], target: float, details: bool = True) -> str:
    """Return a comparison as a Markdown table, with the final accuracies, all volumes and the hyper-parameters."""
    rows = [{**_cells(line, target), **(_more_cells(line, target) if details else {})} for line in lines]
    texts = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in texts)


def _cells(line: Standing, target: float) -> dict[str, str]:
    """Return the cells of a row by heading."""
    goal = percentage(target)
    lost = f" ({len(line.failures)} of {len(line.seeds)} seeds failed)" if line.failures and line.rounds else ""
    cells = {
        "method": line.label + lost,
        "last tenth": _with_deviation(line),
        "best": percent(line.best_accuracy),
        "d/round": f"{line.upload_d_per_round:.3f}",
        "d total": f"{line.upload_d_total:.1f}",
        f"d to {goal}": "never" if line.upload_d_to_target is None else f"{line.upload_d_to_target:.1f}",
        f"rounds to {goal}": "-" if line.rounds_to_target is None else f"{line.rounds_to_target:.0f}",
        "seconds": f"{line.seconds:.1f}",
    }
    return cells if line.rounds else {**dict.fromkeys(cells, "-"), "method": line.label, "last tenth": "failed"}


def _more_cells(line: Standing, target: float) -> dict[str, str]:
    goal = percentage(target)
    floats, size = line.upload_floats_to_target, line.upload_bytes_to_target
    return {
        "final": percent(line.final_accuracy),
        "floats total": f"{line.upload_floats:,.0f}",
        f"floats to {goal}": "never" if floats is None else f"{floats:,.0f}",
        "bytes total": decimal(round(line.upload_bytes)),
        f"bytes to {goal}": "never" if size is None else decimal(round(size)),
        "settings": f"`{line.settings}`",
    }


def _with_deviation(line: Standing) -> str:
    accuracy, deviation = line.last_tenth_accuracy, line.last_tenth_deviation
    if accuracy is None or deviation is None:
        return percent(accuracy)
    return f"{100 * accuracy:.1f} ± {100 * deviation:.1f} %"


def run_table(summary: Mapping[str, Any], folder: Path) -> Table:
    """Return a run's summary as a table for the terminal."""
    table = Table(title=f"{summary['algorithm']}: {summary['rounds']} rounds", show_header=False, title_justify="left")
    rows = {
        "accuracy": f"{percent(summary['final_accuracy'])} final, {percent(summary['best_accuracy'])} best",
        "model": _size(summary),
        "upload per client": f"{summary['upload_d_total'] / max(1, summary['rounds']):.3f} d per round, "
        f"{summary['upload_d_total']:.1f} d in total",
        "upload, all clients": f"{summary['upload_floats']:,} floats, {decimal(summary['upload_bytes'])}",
        "download, all clients": f"{summary['download_floats']:,} floats, {decimal(summary['download_bytes'])}",
        "time": f"{summary['seconds']:.1f} s, {summary['round_seconds_median'] or 0:.3f} s per round (median)",
        "weights": f"SHA-256 {summary['sha256'][:16]}…",
        "files": str(folder),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _size(summary: Mapping[str, Any]) -> str:
    parameters, d = summary["parameters"], summary.get("d", summary["parameters"])
    return f"d = {d:,} parameters" if d == parameters else f"d = {d:,}: {parameters:,} parameters, and buffers"


def percent(value: float | None) -> str:
    """Return an accuracy with one decimal."""
    return "-" if value is None else f"{value:.1%}"


# HTML


class _Cell(NamedTuple):
    text: str
    score: float | None = None
    """The highest score in a column is bold."""


def summary_table(runs: Sequence[Run], target: float) -> str:
    """Return an HTML table of accuracy and upload to the target, as in the papers. The best values are bold."""
    return _html([_summary(run, runs[0], target) for run in runs])


def _summary(run: Run, reference: Run, target: float) -> dict[str, _Cell]:
    """Return the cells of a summary row by heading."""
    goal, end, reference_end = percentage(target), run.reaches(target), reference.reaches(target)
    final = run.accuracies[-1] if run.accuracies else None
    best = max(run.accuracies, default=None)
    tail = last_tenth(run.accuracies)
    uploads = [record.traffic.upload_d_total for record in run.records]
    saving = None if end is None or reference_end is None else reference.bytes[reference_end] / run.bytes[end]

    def cost(values: Sequence[float], show: Callable[[Any], str]) -> _Cell:
        return _Cell("never") if end is None else _Cell(show(values[end]), -values[end])

    return {
        "method": _Cell(run.label),
        "rounds": _Cell(str(len(run.records))),
        "final accuracy": _Cell(percent(final), final),
        "best accuracy": _Cell(percent(best), best),
        "accuracy, last tenth": _Cell("-" if tail is None else f"{100 * tail[0]:.1f} ± {100 * tail[1]:.1f} %"),
        "upload per round, d": _Cell(f"{uploads[-1] / len(uploads):.3f}"),
        f"rounds to {goal}": cost(run.rounds, str),
        f"floats to {goal}": cost(run.floats, "{:,}".format),
        f"bytes to {goal}": cost(run.bytes, decimal),
        f"d to {goal}": cost(uploads, "{:.1f}".format),
        f"upload reduction vs. {reference.label}": _Cell("-" if saving is None else f"{saving:.2f}×", saving),  # noqa: RUF001
        "time": _Cell(f"{run.elapsed[-1]:,.1f} s"),
    }


def failure_table(runs: Sequence[Run]) -> str:
    """Return an HTML table of failures by kind, with the errors of dropped clients."""
    if not any(run.failed for run in runs):
        return "<p>None: no client was dropped, no task was retried, and no host was lost.</p>"
    rows = []
    for run in runs:
        reasons = sorted({f"client {d.client}: {d.reason}" for r in run.records for d in r.dropped if d.reason})
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        counts = {kind: _Cell(f"{sum(counts):,}") for kind, counts in run.failures.items()}
        why = _Cell("; ".join(reasons[:3]) + more)
        rows.append({"method": _Cell(run.label), **counts, "reasons for dropped clients": why})
    return _html(rows)


def _html(rows: Sequence[Mapping[str, _Cell]]) -> str:
    """Return an HTML table from rows of cells by heading."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in rows[0])
    best = {heading: _highest(row[heading].score for row in rows) for heading in rows[0]}
    body = ""
    for row in rows:
        cells = (_td(cell.text, bold=cell.score == best[heading]) for heading, cell in row.items())
        body += f"<tr>{''.join(cells)}</tr>"
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _highest(scores: Iterable[float | None]) -> float:
    return max((score for score in scores if score is not None), default=math.nan)


def _td(text: str, bold: bool) -> str:
    return f'<td class="best">{escape(text)}</td>' if bold else f"<td>{escape(text)}</td>"
