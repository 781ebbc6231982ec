"""Tables for the terminal, for Markdown files and for the HTML page."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.filesize import decimal
from rich.table import Table

from raybcgd.config import Config
from raybcgd.data.partition import Partitioner
from raybcgd.data.settings import SOURCES
from raybcgd.model.settings import MODELS
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.summary import Standing, keeps, last_tenth
from raybcgd.report.runs import Method, Run, differing_settings, methods_of
from raybcgd.report.style import percentage


def conditions(
    config: Config, first: RoundRecord, dataset: str | None = None, seeds: Sequence[int] | None = None
) -> str:
    """Return the conditions of a comparison as text. `dataset` is the name of data passed as an object."""
    seeds = seeds or [config.seed]
    seed = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    data, split = config.data, config.data.partition
    assert isinstance(split, Partitioner)
    return (
        f"{MODELS.name_of(config.model.name)} on {dataset or SOURCES.name_of(data.source)}, {split.clients} clients, "
        f"{f'{data.phases.count} data phases' if data.phases else split.label}, "
        f"{len(first.participants) + len(first.dropped)} clients per round, {seed}"
    )


# Terminal and Markdown

_DROPPED_FIRST = ("time", "best", "d/round", "d total")
_SHORTEST_NAME = 10
"""Columns for the names of methods, however narrow the terminal is."""
_NOT_KEPT = "* reached, but below the target again at the end"


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
    cheapest = min((line.upload_d_to_target for line in lines if line.upload_d_to_target is not None), default=math.nan)
    for line, row in zip(lines, rows, strict=True):
        table.add_row(*(row[name] for name in needs), style="bold" if line.upload_d_to_target == cheapest else None)
    if any("*" in text for row in rows for text in row.values()):
        table.caption, table.caption_justify = _NOT_KEPT, "left"
    return table


def comparison_markdown(lines: Sequence[Standing], target: float, details: bool = True) -> str:
    """Return a comparison as a Markdown table, with the final accuracies, all volumes and the hyper-parameters."""
    rows = _rows(lines, target, details)
    texts = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    note = f"\n{_NOT_KEPT}\n" if any("*" in cell for row in texts for cell in row) else ""
    return "".join(f"| {' | '.join(row)} |\n" for row in texts) + note


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
    goal, kept = percentage(target), "" if line.keeps_target else "*"
    lost = f" ({len(line.failures)} of {len(line.seeds)} seeds failed)" if line.failures and line.rounds else ""
    cells = {
        "method": line.label + lost,
        "last tenth": _with_deviation(line),
        "best": shown_loss(line.best_loss) if line.regression else percent(line.best_accuracy),
        "d/round": f"{line.upload_d_per_round:.3f}",
        "d total": f"{line.upload_d_total:.1f}",
        f"d to {goal}": "never" if line.upload_d_to_target is None else f"{line.upload_d_to_target:.1f}{kept}",
        f"rounds to {goal}": "-" if line.rounds_to_target is None else f"{line.rounds_to_target:.0f}",
        "time, s": f"{line.seconds:.1f}",
    }
    return cells if line.rounds else {**dict.fromkeys(cells, "-"), "method": line.label, "last tenth": "failed"}


def _more_cells(line: Standing, target: float) -> dict[str, str]:
    goal = percentage(target)
    floats, size = line.upload_floats_to_target, line.upload_bytes_to_target
    return {
        "final": shown_loss(line.final_loss) if line.regression else percent(line.final_accuracy),
        "floats total": f"{line.upload_floats:,.0f}",
        f"floats to {goal}": "never" if floats is None else f"{floats:,.0f}",
        "bytes total": decimal(round(line.upload_bytes)),
        f"bytes to {goal}": "never" if size is None else decimal(round(size)),
        "settings": f"`{line.settings}`",
    }


def _with_deviation(line: Standing) -> str:
    accuracy, deviation = line.last_tenth_accuracy, line.last_tenth_deviation
    if line.regression:
        return shown_loss(line.last_tenth_loss) + ("" if deviation is None else f" ± {deviation:.2g}")
    if accuracy is None or deviation is None:
        return percent(accuracy)
    return f"{100 * accuracy:.1f} ± {100 * deviation:.1f} %"


def run_table(summary: Mapping[str, Any], folder: Path) -> Table:
    """Return a run's summary as a table for the terminal."""
    table = Table(title=f"{summary['algorithm']}: {summary['rounds']} rounds", show_header=False, title_justify="left")
    rows = {
        **_quality(summary),
        "model": _size(summary),
        "upload per client": f"{summary['upload_d_total'] / max(1, summary['rounds']):.3f} d per round, "
        f"{summary['upload_d_total']:.1f} d in total",
        "upload, all clients": f"{summary['upload_floats']:,} floats, {decimal(summary['upload_bytes'])}",
        "download, all clients": f"{summary['download_floats']:,} floats, {decimal(summary['download_bytes'])}",
        "time": f"{summary['seconds']:.1f} s in rounds, {summary['round_seconds_median'] or 0:.3f} s per round "
        f"(median); {summary['total_seconds']:.1f} s with the start",
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


# HTML


class _Cell(NamedTuple):
    text: str
    score: float | None = None
    """The highest score in a column is bold."""


def summary_table(methods: Sequence[Method], target: float) -> str:
    """Return an HTML table of accuracy and upload to the target, as in the papers. The best values are bold."""
    rows = [_summary(method, methods[0], target) for method in methods]
    if all(run.regression for method in methods for run in method.runs):
        rows = [_without_accuracy(method, row) for method, row in zip(methods, rows, strict=True)]
    fell = f"{_NOT_KEPT}. " if any("*" in cell.text for row in rows for cell in row.values()) else ""
    return f"{_html(rows)}<p>{fell}Time is that of the rounds, without the start.</p>"


def _summary(method: Method, reference: Method, target: float) -> dict[str, _Cell]:
    """Return the cells of a summary row by heading. Numbers are means over seeds."""
    goal, runs = percentage(target), method.runs
    finals = _mean([run.accuracies[-1] if run.accuracies else None for run in runs])
    best = _mean([max(run.accuracies, default=None) for run in runs])
    kept = "" if all(keeps(run.records, target) for run in runs) else "*"
    cost, other = _cost(method, target, "bytes"), _cost(reference, target, "bytes")
    saving = None if cost is None or other is None else other / cost
    uploads = [run.records[-1].traffic.upload_d_total / len(run.records) for run in runs]

    def to_goal(name: str, show: Callable[[float], str]) -> _Cell:
        value = _cost(method, target, name)
        return _Cell("never") if value is None else _Cell(show(value) + kept, -value)

    return {
        "method": _Cell(method.label if len(runs) == 1 else f"{method.label} ({len(runs)} seeds)"),
        "rounds": _Cell(f"{np.mean([len(run.records) for run in runs]):g}"),
        "final accuracy": _Cell(percent(finals), finals),
        "best accuracy": _Cell(percent(best), best),
        "accuracy, last tenth": _Cell(_last_tenths(runs)),
        "upload per round, d": _Cell(f"{np.mean(uploads):.3f}"),
        f"rounds to {goal}": to_goal("rounds", "{:.0f}".format),
        f"floats to {goal}": to_goal("floats", "{:,.0f}".format),
        f"bytes to {goal}": to_goal("bytes", lambda value: decimal(round(value))),
        f"d to {goal}": to_goal("upload_d", "{:.1f}".format),
        f"upload reduction vs. {reference.label}": _Cell(
            "-" if saving is None else f"{saving:.2f}×{kept}",  # noqa: RUF001
            saving,
        ),
        "time": _Cell(f"{np.mean([run.elapsed[-1] for run in runs]):,.1f} s"),
    }


def _without_accuracy(method: Method, row: dict[str, _Cell]) -> dict[str, _Cell]:
    """Return the row of a regression: losses, without accuracies and targets."""
    finals, best = (_mean([at(run.losses) for run in method.runs]) for at in (lambda losses: losses[-1], min))
    losses = {
        "final loss": _Cell(shown_loss(finals), None if finals is None else -finals),
        "best loss": _Cell(shown_loss(best), None if best is None else -best),
    }
    kept = {name: cell for name, cell in row.items() if "accuracy" not in name and " to " not in name}
    first = {name: kept.pop(name) for name in ("method", "rounds")}
    return {**first, **losses, **{name: cell for name, cell in kept.items() if not name.startswith("upload reduction")}}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _cost(method: Method, target: float, name: str) -> float | None:
    """Return the mean over seeds of a quantity at the round that first reaches the target; None without one."""
    ends = [(run, run.reaches(target)) for run in method.runs]
    return _mean([None if end is None else getattr(run, name)[end] for run, end in ends])


def _last_tenths(runs: Sequence[Run]) -> str:
    """Return the mean over the last tenth of the rounds, with the deviation over seeds or, for one run, over rounds."""
    tails = [tail for run in runs if (tail := last_tenth(run.accuracies)) is not None]
    if not tails:
        return "-"
    mean, deviation = tails[0]
    if len(tails) > 1:
        means = [tail[0] for tail in tails]
        mean, deviation = float(np.mean(means)), float(np.std(means, ddof=1))
    return percent(mean) if deviation is None else f"{100 * mean:.1f} ± {100 * deviation:.1f} %"


def settings_table(runs: Sequence[Run]) -> str:
    """Return the hyper-parameters of every method, and the settings that all runs share, as HTML."""
    methods = methods_of(runs)
    different = [key for key in differing_settings(runs) if not key.startswith("algorithm.")]
    rows = []
    for method in methods:
        settings = method.first.settings
        own = {key: settings[key] for key in settings if key.startswith("algorithm.") or key in different}
        rows.append({"method": _Cell(method.label), "settings": _Cell(_listed(own))})
    hidden = ("algorithm", "compare", "hosts", "metrics", "track", "checkpoint", "seed", "version")
    shared = {k: v for k, v in runs[0].settings.items() if k.partition(".")[0] not in hidden and k not in different}
    common = f"<p>All runs: <code>{escape(_listed(shared))}</code></p>" if len(methods) > 1 or shared else ""
    return _html(rows) + common


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.removeprefix('algorithm.')} = {value}" for key, value in settings.items())


def failure_table(runs: Sequence[Run]) -> str:
    """Return an HTML table of failures by kind, with the errors of dropped clients."""
    if not any(run.failed for run in runs):
        return "<p>None: no client was dropped, no task was retried, and no host was lost.</p>" + _moved(runs)
    rows = []
    for run in runs:
        reasons = sorted({f"client {d.client}: {d.reason}" for r in run.records for d in r.dropped if d.reason})
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        counts = {kind: _Cell(f"{sum(counts):,}") for kind, counts in run.failures.items()}
        why = _Cell("; ".join(reasons[:3]) + more)
        rows.append({"method": _Cell(run.label), **counts, "reasons for dropped clients": why})
    return _html(rows) + _moved(runs)


def _moved(runs: Sequence[Run]) -> str:
    """Return how many clients moved to balance the hosts, which is no failure."""
    shares = [f"{run.label} {run.moved:.0%}" for run in runs if run.moved]
    return (
        f"<p>Clients that trained on another host than last time, to balance the load: {escape(', '.join(shares))}.</p>"
        if shares
        else ""
    )


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
