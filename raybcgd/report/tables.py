"""The tables of a report."""

from collections.abc import Sequence
from html import escape

from raybcgd.record.standing import percent, size
from raybcgd.report.figures import FAILURES, failure_counts
from raybcgd.report.runs import Run


def conditions(runs: Sequence[Run]) -> str:
    """What was the same for all runs, as far as it was."""
    config, first = runs[0].config, runs[0].records[0]
    dealt = config.data.partition
    how = f"Dirichlet({dealt.rho:g})" if dealt.kind.startswith("dirichlet") else dealt.kind
    sampled = len(first.participants) + len(first.dropped)
    words = f"{config.model.name} on {config.data.source}, {dealt.clients} clients, {how}, {sampled} clients a round"
    same = ("data", "model", "seed")
    if any(getattr(run.config, key) != getattr(config, key) for run in runs for key in same):
        return f"The runs differ in data, model or seed; the first is {words}, seed {config.seed}."
    return f"{words}, seed {config.seed}."


def summary_table(runs: Sequence[Run], target: float) -> str:
    """Accuracy, and floats to target, as the papers print them; the best of each column is bold."""
    goal = f"{100 * target:g} %"
    headings = [
        "method",
        "rounds",
        "final accuracy",
        "best",
        "last tenth",
        "upload a round, d",
        f"rounds to {goal}",
        f"floats to {goal}",
        f"bytes to {goal}",
        f"d to {goal}",
        f"fewer floats than {runs[0].label}",
        "time",
    ]
    costs = {run.label: run.floats[k] for run in runs if (k := run.reaches(target)) is not None}
    rows = [_cells(run, target, costs, costs.get(runs[0].label)) for run in runs]
    best = {
        2: max((run.accuracies[-1:] for run in runs), default=[]),
        3: max(([max(run.accuracies)] if run.accuracies else [] for run in runs), default=[]),
    }
    cheapest = min(costs.values(), default=None)
    lines = []
    for run, cells in zip(runs, rows, strict=True):
        bold = {column for column, value in best.items() if value and _value(run, column) == value}
        if cheapest is not None and costs.get(run.label) == cheapest:
            bold |= {7, 8, 9, 10}
        lines.append("".join(_cell(text, k in bold) for k, text in enumerate(cells)))
    return _table(headings, lines)


def _cell(text: str, bold: bool) -> str:
    return f'<td class="best">{escape(text)}</td>' if bold else f"<td>{escape(text)}</td>"


def _value(run: Run, column: int) -> list[float]:
    return run.accuracies[-1:] if column == 2 else [max(run.accuracies)] if run.accuracies else []


def _cells(run: Run, target: float, costs: dict[str, int], reference: int | None) -> list[str]:
    last, k = run.records[-1], run.reaches(target)
    tail = run.last_tenth
    reached = ["-", "never", "never", "never", "-"]
    if k is not None:
        fewer = f"{reference / costs[run.label]:.2f} times" if reference is not None else "-"
        d = run.records[k].upload_d_total
        reached = [str(k + 1), f"{run.floats[k]:,}", size(run.bytes[k]), f"{d:.1f}", fewer]
    return [
        run.label,
        str(len(run.records)),
        percent(run.accuracies[-1] if run.accuracies else None),
        percent(max(run.accuracies, default=None)),
        "-" if tail is None else f"{100 * tail[0]:.1f} ± {100 * tail[1]:.1f} %",
        f"{last.upload_d_total / len(run.records):.3f}",
        *reached,
        f"{run.seconds:,.1f} s",
    ]


def failure_table(runs: Sequence[Run]) -> str:
    """How often what went wrong, and the clients' errors."""
    totals = {run.label: [sum(counts) for counts in failure_counts(run)] for run in runs}
    if not any(any(counts) for counts in totals.values()):
        return "<p>None: no client was dropped, no job done again, no host lost.</p>"
    lines = []
    for run in runs:
        reasons = sorted({f"client {d.client}: {d.reason}" for r in run.records for d in r.dropped if d.reason})
        more = f" and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        cells = "".join(f"<td>{count:,}</td>" for count in totals[run.label])
        lines.append(
            f'<td>{escape(run.label)}</td>{cells}<td class="words">{escape("; ".join(reasons[:3]) + more)}</td>'
        )
    return f'<div class="wide">{_table(["method", *FAILURES, "why clients were dropped"], lines)}</div>'


def _table(headings: Sequence[str], lines: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
