"""A report as one self-contained HTML file."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from raybcgd.errors import ConfigError
from raybcgd.report import figures
from raybcgd.report.plots import headline
from raybcgd.report.runs import Run
from raybcgd.report.style import New, drawing, svg
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

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Makes the browser refuse to fetch anything."""


class Part(NamedTuple):
    """A figure with its heading and an explanation."""

    name: str
    heading: str
    text: str
    figure: Any


def parts(new: New, runs: Sequence[Run], target: float) -> list[Part]:
    """Draw all figures that have something to show."""
    limit = _limit(len(runs), figures.MAX_HEAT_MAPS, "runs")
    found = [
        Part(
            "accuracy",
            "Accuracy",
            "Test accuracy against rounds, and against the floats and bytes uploaded by all clients.",
            figures.accuracy(new, runs, target),
        ),
        Part("loss", "Loss", "Test loss on the same axes.", figures.loss(new, runs)),
        Part(
            "stages",
            "Time",
            "Time per round by stage, and rounds over time. Evaluation counts only while the next round waits for it.",
            figures.stages(new, runs),
        ),
        Part(
            "drift",
            "Drift per block",
            "Sum of the clients' squared displacements divided by the squared norm of their sum. Small: the clients "
            f"agree. Large: they pull apart. Grey: nothing moved.{limit}",
            figures.by_block(new, runs, lambda run: [r.blocks.drift_diversity for r in run.records], "drift diversity"),
        ),
        Part(
            "movement",
            "Movement per block",
            f"Distance that the global model moved in each round.{limit}",
            figures.by_block(new, runs, lambda run: [r.blocks.movement for r in run.records], "distance moved"),
        ),
        Part(
            "upload",
            "Upload per block",
            "Floats uploaded by all clients. Every client uploads the shared block.",
            figures.uploads(new, runs),
        ),
        *_partitions(new, runs),
        Part("failures", "Failures over time", "Total number up to each round.", figures.failures(new, runs)),
    ]
    return [part for part in found if part.figure is not None]


def _partitions(new: New, runs: Sequence[Run]) -> Iterator[Part]:
    """Draw every partition once."""
    seen = []
    for number, run in enumerate(runs):
        if run.partition is not None and run.partition not in seen:
            seen.append(run.partition)
            heading = f"Partition of {run.partition.dataset}" + (f" ({run.label})" if number else "")
            limit = _limit(len(run.partition.counts), figures.MAX_PHASES, "data phases")
            text = f"Samples per client and label.{limit}"
            yield Part(f"partition{len(seen)}", heading, text, figures.partition(new, run))


def _limit(count: int, shown: int, what: str) -> str:
    return f" Only the first {shown} {what} are shown." if count > shown else ""


def write_report(runs: Sequence[Run], target: float, out: Path, png: bool = False) -> list[Path]:
    """Write the page, and with `png` also every figure as a PNG. Return the files written."""
    with drawing() as new:
        drawn = parts(new, runs, target)
        images = {out.with_name(f"{out.stem}-{part.name}.png"): part.figure for part in drawn} if png else {}
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(_page(runs, target, drawn), encoding="utf-8")
            for path, figure in images.items():
                figure.savefig(path)
        except OSError as error:
            raise ConfigError(f"cannot write {out} ({error.strerror}); choose another --out") from None
    return [out, *images]


def _conditions(runs: Sequence[Run]) -> str:
    first = runs[0]
    text = conditions(first.config, first.records[0], first.partition.dataset if first.partition else None)
    if any(getattr(run.config, key) != getattr(first.config, key) for run in runs for key in ("data", "model", "seed")):
        return f"The runs differ in data, model or seed. The first run: {text}."
    return f"{text}."


def _page(runs: Sequence[Run], target: float, drawn: Sequence[Part]) -> str:
    title = headline({run.label: run.records for run in runs}, target)
    sections = [
        f'<section><h2 id="{part.name}-heading">{escape(part.heading)}</h2><p>{escape(part.text)}</p>'
        f'<figure id="{part.name}">{svg(part.figure, part.name)}</figure></section>'
        for part in drawn
    ]
    body = "\n".join(
        [
            f"<h1>{escape(title)}</h1>",
            f"<p>{escape(_conditions(runs))}</p>",
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
        f"<body>\n{body}\n<footer>Generated by raybcgd report.</footer>\n</body></html>\n"
    )
