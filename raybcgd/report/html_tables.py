"""Tables of the HTML page."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from rich.filesize import decimal

from raybcgd.record.summary import Standing, over_seeds, standing, summarise
from raybcgd.report.failures import FailedRun
from raybcgd.report.runs import Method, Run, comparable, differing_settings, methods_of
from raybcgd.report.style import percentage, reference_of, shown_d
from raybcgd.report.tables import (
    MEDIAN,
    UNIT,
    falls_back,
    last_tenth_text,
    not_reached,
    notes,
    percent,
    shown_loss,
    shown_rounds,
    shown_seconds,
)


class _Cell(NamedTuple):
    text: str
    score: float | None = None
    """The highest score in a column is bold."""


def summary_table(methods: Sequence[Method], target: float, failed: Sequence[FailedRun] = (), aims: bool = True) -> str:
    """Return an HTML table of accuracy and, with `aims`, of the upload to the target.

    If all runs use the same data and model, uploads are compared with those of a reference. Then, the best values are
    also bold, unless they are means over different numbers of seeds.
    """
    lines = [_line(method, target, failed) for method in methods]
    ended = all(run.state == "finished" for method in methods for run in method.runs)
    alike = comparable([run for method in methods for run in method.runs])
    federated = {line.label: line for line in lines if not line.pooled and not line.regression}
    reference = federated.get(reference_of(list(federated)) or "") if len(federated) > 1 and alike else None
    if reference is not None and reference.upload_d_to_target is None:
        reference = None
    rows: list[dict[str, _Cell]] = []
    for method, line in zip(methods, lines, strict=True):
        row = {"method": _Cell(_named(line)), "rounds": _Cell(_rounds(method, line)), **_quality(line, ended)}
        row["d per round"] = _Cell("-" if line.pooled else f"{line.upload_d_per_round:.3f}")
        if aims and not line.regression:
            row |= _to_target(line, target)
        if reference is not None and not line.regression:
            row[f"upload reduction vs. {reference.label}"] = _reduction(line, reference, target)
        rows.append({**row, "seconds per round": _Cell(shown_seconds(line.round_seconds_median))})
    lost = dict.fromkeys(one.method for one in failed if one.method not in {line.label for line in lines})
    rows += [{"method": _Cell(label), "rounds": _Cell("failed")} for label in lost]
    bold = alike and len({len(line.seeds) for line in lines}) == 1
    return f"{_html(rows, bold=bold)}<p>{escape(' '.join([*notes(lines, target), UNIT, MEDIAN]))}</p>"


def _line(method: Method, target: float, failed: Sequence[FailedRun]) -> Standing:
    """Return a method's row in the table of a comparison."""
    rows = {
        run.config.seed: standing(
            method.label, "", run.records, {"algorithm": "", **summarise(run.records, (), 0.0)}, target
        )
        for run in method.runs
    }
    shown = {run.folder for run in method.runs}
    reasons = tuple(one.reason for one in failed if one.method == method.label and one.folder not in shown)
    seeds = tuple(range(len(rows) + len(reasons)))  # only their number is shown
    row = over_seeds(rows)._replace(failures=reasons, pooled=method.first.pooled)
    return row._replace(seeds=seeds if len(seeds) > 1 else ())


def _named(line: Standing) -> str:
    if line.failures:
        return f"{line.label} ({len(line.failures)} of {len(line.seeds)} seeds failed)"
    return line.label


def _rounds(method: Method, line: Standing) -> str:
    """Return the number of rounds. A run that has not ended, or that ended early, also shows how many it can have."""
    wanted = [run.config.rounds for run in method.runs if run.state != "finished" or run.ended_by]
    return f"{line.rounds} of {wanted[0]}" if wanted else str(line.rounds)


def _quality(line: Standing, ended: bool) -> dict[str, _Cell]:
    """Return the cells of accuracies or, for a regression, of losses."""
    if line.regression:
        final, best = line.final_loss, line.best_loss
        return {
            "final loss" if ended else "loss so far": _Cell(shown_loss(final), _less(line, final)),
            "best loss": _Cell(shown_loss(best), _less(line, best)),
            "last tenth": _Cell(_unbroken(last_tenth_text(line))),
        }
    now = line.final_accuracy
    return {
        "final accuracy" if ended else "accuracy so far": _Cell(percent(now), None if line.pooled else now),
        "best accuracy": _Cell(percent(line.best_accuracy), None if line.pooled else line.best_accuracy),
        "last tenth": _Cell(_unbroken(last_tenth_text(line))),
    }


def _to_target(line: Standing, target: float) -> dict[str, _Cell]:
    """Return the cells of rounds and uploads until the target is first reached. One that falls back is never best."""
    goal, star, missing = percentage(target), "*" if falls_back(line, target) else "", not_reached(line)
    floats, size, d = line.upload_floats_to_target, line.upload_bytes_to_target, line.upload_d_to_target
    uploads = {
        "floats": _Cell(missing) if floats is None else _Cell(f"{floats:,.0f}{star}", -floats),
        "bytes": _Cell(missing) if size is None else _Cell(_unbroken(decimal(round(size))) + star, -size),
        "d": _Cell(missing) if d is None else _Cell(f"{shown_d(d)}{star}", -d),
    }
    if line.pooled:
        uploads = dict.fromkeys(uploads, _Cell("-"))
    rounds = _Cell(shown_rounds(line) + star, _less(line, line.rounds_to_target))
    cells = {"rounds": rounds, **uploads}
    return {f"{name} to {goal}": cell._replace(score=None) if star else cell for name, cell in cells.items()}


def _reduction(line: Standing, reference: Standing, target: float) -> _Cell:
    """Return how much less a client uploads than with the reference until the target is first reached."""
    cost, other = line.upload_d_to_target, reference.upload_d_to_target
    if line.pooled or cost is None or other is None:
        return _Cell("-")
    star = "*" if falls_back(line, target) else ""
    return _Cell(f"{other / cost:.2f}×{star}", None if star else other / cost)  # noqa: RUF001


def _unbroken(text: str) -> str:
    """Make the spaces in a text non-breaking, so that a narrow window keeps a number and its unit on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _less(line: Standing, value: float | None) -> float | None:
    """Return the score of a value that should be small. Centralised training is a reference: it is never the best."""
    return None if value is None or line.pooled else -value


def settings_table(runs: Sequence[Run], failed: Sequence[FailedRun] = ()) -> str:
    """Return the hyper-parameters of every method, failed or not, and the settings that all runs share, as HTML."""
    methods = methods_of(runs)
    labels = {method.label for method in methods}
    lost: dict[str, FailedRun] = {}
    for one in failed:
        if one.method not in labels:
            lost.setdefault(one.method, one)
    read = [*(run.settings for run in runs), *(one.settings for one in lost.values() if one.settings)]
    different = [key for key in differing_settings(read) if not key.startswith("algorithm.")]

    def row(label: str, settings: Mapping[str, Any], known: str = "-") -> dict[str, _Cell]:
        own = {key: settings[key] for key in settings if key.startswith("algorithm.") or key in different}
        return {"method": _Cell(label), "settings": _Cell(_listed(own) or known)}

    rows = [row(method.label, method.first.settings) for method in methods]
    rows += [row(one.method, one.settings, one.known or "-") for one in lost.values()]
    hidden = ("algorithm", "compare", "hosts", "metrics", "track", "checkpoint", "seed", "version")
    shared = {k: v for k, v in runs[0].settings.items() if k.partition(".")[0] not in hidden and k not in different}
    common = f"<p>All runs: <code>{escape(_listed(shared))}</code></p>" if len(methods) > 1 or shared else ""
    return _html(rows) + common


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.removeprefix('algorithm.')} = {value}" for key, value in settings.items())


def failure_table(runs: Sequence[Run], failed: Sequence[FailedRun] = ()) -> str:
    """Return HTML tables of the runs that failed, and of other failures by kind, with the errors of dropped clients."""
    lost = [{"run": _Cell(one.label), "why it failed": _Cell(one.reason)} for one in failed]
    first = _html(lost) if lost else ""
    if not any(run.had_failures for run in runs):
        which = "In the other runs, no" if failed else "None: no"
        return f"{first}<p>{which} client was dropped, no task was retried, and no host was lost.</p>" + _moved(runs)
    rows = []
    for run in runs:
        reasons = sorted({f"client {d.client}: {d.reason}" for r in run.records for d in r.dropped if d.reason})
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        counts = {kind: _Cell(f"{sum(counts):,}") for kind, counts in run.failures.items()}
        why = _Cell("; ".join(reasons[:3]) + more)
        rows.append({"run": _Cell(run.label), **counts, "reasons for dropped clients": why})
    return first + _html(rows) + _moved(runs)


def _moved(runs: Sequence[Run]) -> str:
    """Return the share of client tasks that moved to another host, as a paragraph."""
    shares = [f"{run.label} {run.moved:.0%}" for run in runs if run.moved]
    text = f"Share of client tasks moved to another host, mostly to balance the load: {', '.join(shares)}."
    return f"<p>{escape(text)}</p>" if shares else ""


def _html(rows: Sequence[Mapping[str, _Cell]], bold: bool = True) -> str:
    """Return an HTML table from rows of cells by heading. With `bold`, the best cells of a column are.

    Equal texts in a column are equally bold.
    """
    headings, none = _headings(rows), _Cell("-")
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    best = {heading: _best([row.get(heading, none) for row in rows]) for heading in headings}
    body = ""
    for row in rows:
        cells = ((row.get(heading, none), best[heading]) for heading in headings)
        marked = (_td(cell.text, bold and len(rows) > 1 and _is_best(cell, other)) for cell, other in cells)
        body += f"<tr>{''.join(marked)}</tr>"
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _headings(rows: Sequence[Mapping[str, _Cell]]) -> list[str]:
    """Return the headings of all rows. Those that only some rows have follow the one that they follow there."""
    found: list[str] = []
    for row in rows:
        place = 0
        for heading in row:
            if heading not in found:
                found.insert(place, heading)
            place = found.index(heading) + 1
    return found


def _best(cells: Sequence[_Cell]) -> _Cell:
    return max(cells, key=lambda cell: -math.inf if cell.score is None else cell.score)


def _is_best(cell: _Cell, best: _Cell) -> bool:
    return cell.score is not None and cell.text.rstrip("*") == best.text.rstrip("*")


def _td(text: str, bold: bool) -> str:
    return f'<td class="best">{escape(text)}</td>' if bold else f"<td>{escape(text)}</td>"
