"""A report as one HTML file that asks nobody for anything."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from raybcgd.errors import ConfigError
from raybcgd.report import figures
from raybcgd.report.plots import headline
from raybcgd.report.runs import Run
from raybcgd.report.style import drawing, svg
from raybcgd.report.tables import conditions, failure_table, summary_table

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "Segoe UI", Arial, sans-serif; color: #1b1b1b; background: #fff; margin: 0 auto;
  padding: 1.5rem 2rem 4rem; max-width: 76rem; }
h1 { font-size: 1.55rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .2rem; border-top: 1px solid #ddd; padding-top: 1rem; }
p { margin: .2rem 0 .7rem; color: #444; max-width: 60rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .32rem .7rem; text-align: right; border-bottom: 1px solid #e4e4e4; white-space: nowrap; }
th { font-weight: 600; vertical-align: bottom; border-bottom: 2px solid #999; white-space: normal; }
th:first-child, td:first-child { text-align: left; }
td.best { font-weight: 700; }
td.words { text-align: left; white-space: normal; }
figure { margin: 0; }
figure svg { width: 100%; height: auto; display: block; }
footer { margin-top: 3rem; color: #666; font-size: .85rem; }
@media print { body { max-width: none; } section { break-inside: avoid; } }
"""

# Nothing may be fetched, from anywhere; this makes the browser see to it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Part:
    """A figure with its heading and a line on how to read it."""

    name: str
    heading: str
    words: str
    figure: Any


def parts(new: figures.New, runs: Sequence[Run], target: float) -> Iterator[Part]:
    """All figures for which there is something to show."""
    yield Part(
        "accuracy",
        "Accuracy",
        "On the test data, against rounds and against what all clients together have uploaded.",
        figures.accuracy(new, runs, target),
    )
    yield Part("loss", "Loss", "On the test data, against the same.", figures.loss(new, runs))
    yield Part(
        "phases",
        "Time",
        "Where a round's time goes. Evaluation counts as far as anybody waited for it.",
        figures.phases(new, runs),
    )
    drift = figures.by_block(new, runs, lambda run: [r.drift_diversity for r in run.records], "drift diversity", True)
    if drift is not None:
        words = (
            "Sum of the clients' squared displacements over the square of their sum, block by block: small where "
            "clients agree, large where they pull apart. Grey: nothing moved."
        )
        yield Part("drift", "Drift by block", words, drift)
    moved = figures.by_block(new, runs, lambda run: [r.movement for r in run.records], "distance moved", True)
    if moved is not None:
        yield Part("movement", "Movement by block", "How far the global model moved in a round.", moved)
    yield Part(
        "upload",
        "Upload by block",
        "Floats that all clients have uploaded of each block; every client sends the shared one.",
        figures.uploads(new, runs),
    )
    seen = []
    for number, run in enumerate(runs):
        if run.partition is not None and run.partition not in seen:
            seen.append(run.partition)
            drawn = figures.partition(new, run)
            heading = f"Partition of {run.partition.dataset}" + (f" ({run.label})" if number else "")
            words = "How many samples of each label each client has."
            yield Part(f"partition{len(seen)}", heading, words, drawn)
    wrong = figures.failures(new, runs)
    if wrong is not None:
        yield Part("failures", "Failures over time", "Summed over the rounds.", wrong)


def write_report(runs: Sequence[Run], target: float, out: Path, png: bool = False) -> list[Path]:
    """Write the page, and with `png` every figure as a picture beside it; the files written."""
    with drawing() as new:
        drawn = list(parts(new, runs, target))
        written = [out]
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(_page(runs, target, drawn), encoding="utf-8")
            for part in drawn if png else ():
                picture = out.with_name(f"{out.stem}-{part.name}.png")
                part.figure.savefig(picture, dpi=130)
                written.append(picture)
        except OSError as error:
            raise ConfigError(f"cannot write {out} ({error.strerror}); choose another --out") from None
    return written


def _page(runs: Sequence[Run], target: float, drawn: Sequence[Part]) -> str:
    title = headline({run.label: run.records for run in runs}, target)
    sections = [
        f'<section><h2 id="{part.name}-heading">{escape(part.heading)}</h2><p>{escape(part.words)}</p>'
        f'<figure id="{part.name}">{svg(part.figure, part.name)}</figure></section>'
        for part in drawn
    ]
    body = "\n".join(
        [
            f"<h1>{escape(title)}</h1>",
            f"<p>{escape(conditions(runs))}</p>",
            f'<div class="wide">{summary_table(runs, target)}</div>',
            *sections,
            f"<section><h2>Failures</h2>{failure_table(runs)}</section>",
        ]
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{_STYLE}</style></head>\n'
        f"<body>\n{body}\n<footer>Made by raybcgd report.</footer>\n</body></html>\n"
    )
