"""Our results beside the published ones: numbers per row, and tables as Markdown, LaTeX and JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from raybcgd.paper.published import NEVER, Experiment, Row
from raybcgd.paper.runs import Choice, Finished, Runs
from raybcgd.record.summary import reaches


class Line(NamedTuple):
    """A row of the paper, and our numbers for it. Ours is None if there was no such run."""

    theirs: Row
    ours: Row | None
    keys: tuple[str, ...] = ()
    """The hashes of our runs."""


def compare_rows(experiment: Experiment, target: float, runs: Mapping[str, Runs]) -> list[Line]:
    """Return the rows of an experiment with our numbers. Runs that the paper has no row for come last."""
    published = {label for row in experiment.rows for label in row.run_labels}
    rows = [*experiment.rows, *(Row(label=label) for label in runs if label not in published)]
    lines = []
    for row in rows:
        found = [(label, runs[label].finished) for label in row.run_labels if label in runs and runs[label].finished]
        if not found:
            lines.append(Line(row, None))
            continue
        ((label, done),) = found  # of several, `run_variants` returns the best one on the validation data
        lines.append(Line(row, _measured(label, experiment, target, done), tuple(one.key for one in done)))
    return lines


def choices(experiment: Experiment) -> list[Choice]:
    """Return the rows of an experiment for which the best of several runs counts."""
    return [Choice(row.runs, partial(_accuracy, experiment)) for row in experiment.rows if len(row.runs) > 1]


def _measured(label: str, experiment: Experiment, target: float, runs: Sequence[Finished]) -> Row:
    """Return the means of our runs over the seeds."""
    accuracies = [value for value in (_accuracy(experiment, one) for one in runs) if value is not None]
    ends = [reaches(one.records, target) for one in runs]
    return Row(
        label=label,
        accuracy=float(np.mean(accuracies)) if accuracies else None,
        deviation=float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None,
        upload_d=float(np.mean([NEVER if end is None else end.traffic.upload_d_total for end in ends])),
        rounds=float(np.mean([NEVER if end is None else end.round + 1 for end in ends])),
    )


def _accuracy(experiment: Experiment, one: Finished) -> float | None:
    """Return the accuracy of a run in percent, as the paper reports it."""
    if experiment.measure == "round":
        until = [record for record in one.records if experiment.round is None or record.round < experiment.round]
        values = [record.quality.accuracy for record in until if record.quality.accuracy is not None]
        return 100 * values[-1] if values else None
    value = one.summary[f"{experiment.measure}_accuracy"]
    return None if value is None else 100 * float(value)


def numbers(row: Row | None, like: Row | None = None) -> str:
    """Return the numbers of a row as text. With `like`, leave out what that row does not have."""
    if row is None:
        return "-"
    like = like if like is not None and like != Row(label=like.label) else row
    parts = []
    if row.accuracy is not None and like.accuracy is not None:
        end = "" if row.highest is None else f"-{row.highest:g}"
        deviation = "" if row.deviation is None else f" ± {row.deviation:.1f}"
        parts.append(f"{row.accuracy:.1f}{deviation}" if not end else f"{row.accuracy:g}{end}")
    if row.upload_d is not None and like.upload_d is not None:
        parts.append("(∞)" if math.isinf(row.upload_d) else f"({row.upload_d:.{3 if row.upload_d < 100 else 5}g} d)")
    if row.rounds is not None and like.rounds is not None:
        parts.append("never" if math.isinf(row.rounds) else f"{row.rounds:.0f} rounds")
    return " ".join(parts) or "-"


class Comparison(NamedTuple):
    """An experiment with both sets of numbers."""

    experiment: Experiment
    target: float
    changes: tuple[str, ...]
    """Settings that differ from the paper's, as key=value."""
    lines: list[Line]
    failures: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """What the numbers are, and which settings are not the paper's."""
        one = self.experiment
        what = {"last_tenth": "mean over the last tenth of the rounds", "best": "best accuracy"}
        accuracy = what.get(one.measure, f"accuracy after {one.round} rounds")
        changed = f" Our runs use other settings: {', '.join(self.changes)}." if self.changes else ""
        return f"{one.title}. Accuracy in %: {accuracy}. Target {100 * self.target:g} %.{changed}"


def markdown(result: Comparison) -> str:
    """Return a comparison as a Markdown table with a heading."""
    lines = result.lines
    rows = [("method", "paper", "ours"), ("---",) * 3, *_cells(lines)]
    notes = "".join(f"\n{line.theirs.label}: {line.theirs.note}\n" for line in lines if line.theirs.note)
    return f"{result.caption}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows) + notes


def latex(result: Comparison) -> str:
    """Return a comparison as a LaTeX table."""
    body = "".join(f"{' & '.join(map(_escaped, row))} \\\\\n" for row in _cells(result.lines))
    return (
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{_escaped(result.caption)}}}\n"
        "\\begin{tabular}{lrr}\n\\hline\nmethod & paper & ours \\\\\n\\hline\n"
        f"{body}\\hline\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def to_json(result: Comparison) -> str:
    """Return both sets of numbers as JSON. A target that was never reached is the text "never"."""
    rows = [
        {"method": line.theirs.label, "paper": _plain(line.theirs), "ours": _plain(line.ours), "runs": line.keys}
        for line in result.lines
    ]
    head = {
        key: getattr(result.experiment, key) for key in ("paper", "name", "model", "data", "rho", "config", "measure")
    }
    own = {"target": result.target, "changes": result.changes, "rows": rows, "failures": result.failures}
    return json.dumps({**head, **own}, indent=2) + "\n"


def _cells(lines: Sequence[Line]) -> list[tuple[str, str, str]]:
    return [(line.theirs.label, numbers(line.theirs), numbers(line.ours, line.theirs)) for line in lines]


def _plain(row: Row | None) -> dict[str, Any] | None:
    if row is None:
        return None
    values = {key: getattr(row, key) for key in ("accuracy", "highest", "deviation", "upload_d", "rounds")}
    return {key: "never" if value == NEVER else value for key, value in values.items() if value is not None}


def _escaped(text: str) -> str:
    for old, new in (("%", r"\%"), ("_", r"\_"), ("±", r"$\pm$"), ("∞", r"$\infty$"), ("→", r"$\to$")):
        text = text.replace(old, new)
    return text
