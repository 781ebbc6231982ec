"""Tables for the terminal, for Markdown files and for the HTML page."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.table import Table

from raybcgd.config import Config
from raybcgd.data.partition import Partitioner
from raybcgd.data.settings import SOURCES
from raybcgd.model.settings import MODELS
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.summary import Standing
from raybcgd.report.runs import Run
from raybcgd.report.style import percentage


def conditions(config: Config, first: RoundRecord, dataset: str | None = None) -> str:
    """Return the conditions of a comparison. `dataset` names data that were passed as an object."""
    data, split = config.data, config.data.partition
    assert isinstance(split, Partitioner)
    return (
        f"{MODELS.name_of(config.model.name)} on {dataset or SOURCES.name_of(data.source)}, {split.clients} clients, "
        f"{f'{data.phases.count} data phases' if data.phases else split.label}, "
        f"{len(first.participants) + len(first.dropped)} clients per round, seed {config.seed}"
    )


# Terminal and Markdown


def comparison_table(lines: Sequence[Standing], target: float) -> Table:
    """Return a comparison for the terminal."""
    table = Table(title="Accuracy, and mean upload per client in units of the model size d", title_justify="left")
    for k, heading in enumerate(_headings(target)):
        table.add_column(heading, justify="left" if k == 0 else "right", no_wrap=heading.startswith("d "))
    cheapest = min((line.upload_d_to_target for line in lines if line.upload_d_to_target is not None), default=None)
    for line in lines:
        best = cheapest is not None and line.upload_d_to_target == cheapest
        table.add_row(*_cells(line), style="bold" if best else None)
    return table


def comparison_markdown(lines: Sequence[Standing], target: float) -> str:
    """Return a comparison for a file, with the hyper-parameters."""
    rows = [[*_headings(target), "settings"], *([*_cells(line), f"`{line.settings}`"] for line in lines)]
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _headings(target: float) -> list[str]:
    goal = percentage(target)
    return ["method", "final", "best", "d/round", "d total", f"d to {goal}", f"rounds to {goal}", "seconds"]


def _cells(line: Standing) -> list[str]:
    return [
        line.label,
        percent(line.final_accuracy),
        percent(line.best_accuracy),
        f"{line.upload_d_per_round:.3f}",
        f"{line.upload_d:.1f}",
        "never" if line.upload_d_to_target is None else f"{line.upload_d_to_target:.1f}",
        "-" if line.rounds_to_target is None else str(line.rounds_to_target),
        f"{line.seconds:.1f}",
    ]


def run_table(summary: Mapping[str, Any], folder: Path) -> Table:
    """Return a run's summary for the terminal."""
    table = Table(title=f"{summary['algorithm']}: {summary['rounds']} rounds", show_header=False, title_justify="left")
    rows = {
        "accuracy": f"{percent(summary['final_accuracy'])} final, {percent(summary['best_accuracy'])} best",
        "model": f"d = {summary['parameters']:,} parameters",
        "upload per client": f"{summary['upload_d'] / max(1, summary['rounds']):.3f} d per round, "
        f"{summary['upload_d']:.1f} d in total",
        "upload, all clients": f"{summary['upload_floats']:,} floats, {size(summary['upload_bytes'])}",
        "download, all clients": f"{summary['download_floats']:,} floats, {size(summary['download_bytes'])}",
        "time": f"{summary['seconds']:.1f} s, {summary['round_seconds_median'] or 0:.3f} s per round (median)",
        "weights": f"SHA-256 {summary['sha256'][:16]}…",
        "files": str(folder),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


# HTML


def summary_table(runs: Sequence[Run], target: float) -> str:
    """Return accuracy and floats to the target, as the papers report them. The best values are bold."""
    goal = percentage(target)
    headings = ["method", "rounds", "final accuracy", "best accuracy", "accuracy, last tenth", "upload per round, d"]
    headings += [f"{unit} to {goal}" for unit in ("rounds", "floats", "bytes", "d")]
    headings += [f"upload reduction vs. {runs[0].label}", "time"]
    reached = {run.label: run.reaches(target) for run in runs}
    costs = {run.label: run.floats[k] for run in runs if (k := reached[run.label]) is not None}
    best = {
        2: _best({run.label: run.accuracies[-1] for run in runs if run.accuracies}),
        3: _best({run.label: max(run.accuracies) for run in runs if run.accuracies}),
        **{column: _best({label: -cost for label, cost in costs.items()}) for column in (7, 8, 9, 10)},
    }
    lines = []
    for run in runs:
        cells = _summary_cells(run, reached[run.label], costs.get(runs[0].label))
        bold = [run.label in best.get(column, ()) for column in range(len(cells))]
        lines.append("".join(_cell(text, "best" * is_best) for text, is_best in zip(cells, bold, strict=True)))
    return _html(headings, lines)


def _best(values: Mapping[str, float]) -> set[str]:
    return {label for label, value in values.items() if value == max(values.values())}


def _summary_cells(run: Run, reached: int | None, reference: int | None) -> list[str]:
    tail = run.last_tenth
    target = ["-", "never", "never", "never", "-"]
    if reached is not None:
        floats, d = run.floats[reached], run.records[reached].traffic.upload_d_total
        factor = "-" if reference is None else f"{reference / floats:.2f}×"  # noqa: RUF001
        target = [str(reached + 1), f"{floats:,}", size(run.bytes[reached]), f"{d:.1f}", factor]
    return [
        run.label,
        str(len(run.records)),
        percent(run.accuracies[-1] if run.accuracies else None),
        percent(max(run.accuracies, default=None)),
        "-" if tail is None else f"{100 * tail[0]:.1f} ± {100 * tail[1]:.1f} %",
        f"{run.records[-1].traffic.upload_d_total / len(run.records):.3f}",
        *target,
        f"{run.seconds:,.1f} s",
    ]


def failure_table(runs: Sequence[Run]) -> str:
    """Return the number of failures by kind, and the errors of dropped clients."""
    totals = {run.label: [sum(counts) for counts in run.failures.values()] for run in runs}
    if not any(any(counts) for counts in totals.values()):
        return "<p>None: no client was dropped, no task was retried, and no host was lost.</p>"
    lines = []
    for run in runs:
        reasons = sorted({f"client {d.client}: {d.reason}" for r in run.records for d in r.dropped if d.reason})
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        cells = [_cell(run.label), *(_cell(f"{count:,}") for count in totals[run.label])]
        lines.append("".join([*cells, _cell("; ".join(reasons[:3]) + more, "words")]))
    return f'<div class="wide">{_html(["method", *runs[0].failures, "why clients were dropped"], lines)}</div>'


def _cell(text: str, kind: str = "") -> str:
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def _html(headings: Sequence[str], lines: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


# Numbers


def percent(value: float | None) -> str:
    """Return an accuracy with one decimal."""
    return "-" if value is None else f"{value:.1%}"


def size(count: float) -> str:
    """Return a number of bytes in a readable unit."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
