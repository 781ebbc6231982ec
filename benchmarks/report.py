"""Write RESULTS.md, results.png and docs/scale.md from results.json."""

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks import scale
from benchmarks.rounds import PEERS

HERE = Path(__file__).parent
DATA, PAGE, PLOT = HERE / "results.json", HERE / "RESULTS.md", HERE / "results.png"
FEDAVG = "raybcgd FedAvg"
REFERENCES = {"W1": ("bare channels_last",), "W2": ("bare plain", "bare vmap")}
"""The contestants whose round times are the denominators of the ratios."""

Results = dict[str, Any]


class Target(NamedTuple):
    """A limit on the ratio of two round times."""

    workload: str
    slower: str
    faster: str
    limit: float
    at_least: bool = False

    @property
    def text(self) -> str:
        """The target in words."""
        if self.at_least:
            return f"{self.workload}: {self.faster} is at least {self.limit:g} times as fast as {self.slower}"
        return f"{self.workload}: {self.slower} takes at most {self.limit:g} x {self.faster}"

    def met(self, ratio: float) -> bool:
        """Return whether a ratio meets the target."""
        return ratio >= self.limit if self.at_least else ratio <= self.limit


TARGETS = (
    Target("W1", FEDAVG, "bare channels_last", 1.05),
    Target("W2", FEDAVG, "bare plain", 0.4),
    Target("W2", FEDAVG, "bare vmap", 1.6),
    Target("W2", "Flower", FEDAVG, 30, at_least=True),
    Target("W2", "pfl-research", FEDAVG, 3.5, at_least=True),
    Target("W1", "raybcgd FedBCGD+ (E = 5)", "raybcgd FedBCGD (E = 5)", 1.35),
    Target("W2", "raybcgd FedBCGD+ (E = 5)", "raybcgd FedBCGD (E = 5)", 1.35),
    Target("W2", "raybcgd SCAFFOLD", FEDAVG, 1.3),
)


def ratios(workload: Results, slower: str, faster: str) -> np.ndarray | None:
    """Return the ratio of the two medians in each turn, or None if one of them was not measured.

    Turns are paired because the speed of a machine drifts.
    """
    found = workload["contestants"]
    if slower not in found or faster not in found:
        return None
    medians = [[float(np.median(turn)) for turn in found[name]["seconds"]] for name in (slower, faster)]
    return np.array(medians[0]) / np.array(medians[1])


def _table(header: list[str], rows: Iterator[list[str]] | list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _quartiles(seconds: list[list[float]] | list[float]) -> tuple[float, float, float]:
    low, middle, high = np.percentile(np.concatenate([np.atleast_1d(part) for part in seconds]), [25, 50, 75])
    return float(low), float(middle), float(high)


def _round_times(results: Results) -> Iterator[str]:
    for name, workload in results.get("rounds", {}).items():
        schedule = workload["schedule"]
        yield f"### {name}: {workload['title']}"
        yield ""
        references = REFERENCES[name]
        rows = []
        for contestant, found in workload["contestants"].items():
            low, middle, high = _quartiles(found["seconds"])
            columns = [ratios(workload, contestant, reference) for reference in references]
            against = [f"{np.median(column):.2f}" for column in columns if column is not None]
            rows.append([contestant, f"{middle:.4f}", f"{low:.4f} to {high:.4f}", *against, f"{found['loss']:.3f}"])
        yield from _table(
            ["contestant", "median, s", "quartiles, s", *(f"ratio to {one}" for one in references), "loss"], rows
        )
        yield (
            f"Turns: {schedule['turns']}. "
            f"Rounds per turn: {schedule['rounds']}, after {schedule['warm_up']} warm-up rounds. "
            f"loss: training loss after the first turn; before it: {workload['initial_loss']:.3f}. "
            "A turn of raybcgd has two more rounds, so losses are only roughly comparable."
        )
        yield ""


def _targets(results: Results) -> Iterator[str]:
    rows = []
    for target in TARGETS:
        workload = results.get("rounds", {}).get(target.workload)
        found = None if workload is None else ratios(workload, target.slower, target.faster)
        if found is None:
            rows.append([target.text, "not measured", "", ""])
            continue
        ratio = float(np.median(found))
        rows.append(
            [
                target.text,
                f"{ratio:.2f}",
                f"{found.min():.2f} to {found.max():.2f}",
                "yes" if target.met(ratio) else "no",
            ]
        )
    yield from _table(["target", "ratio, median of turns", "range over turns", "met"], rows)


def _settings() -> Iterator[str]:
    """Yield the setting of each peer, from the docstring of its script."""
    for name, module in PEERS.items():
        docstring = ast.get_docstring(ast.parse((HERE.parent / (module.replace(".", "/") + ".py")).read_text()))
        assert docstring is not None
        paragraph = next(part for part in docstring.split("\n\n") if part.startswith("Setting: "))
        yield f"- **{name}**: {' '.join(paragraph.removeprefix('Setting: ').split())}"


def _scaling(results: Results) -> Iterator[str]:
    for name, curve in results.get("scaling", {}).items():
        yield f"### {curve.get('heading', 'Round time')} against {name}"
        yield ""
        yield curve["title"] + "."
        yield ""
        rows = []
        for point in curve["points"]:
            low, middle, high = _quartiles(point["seconds"])
            cells = [f"{point['x']:,}".replace(",", " "), f"{middle:.4f}", f"{low:.4f} to {high:.4f}"]
            rows.append([*cells, f"{1000 * middle / point['cohort']:.3f}"] if "cohort" in point else cells)
        header = [curve["x"], "median, s", "quartiles, s"]
        yield from _table([*header, "ms per sampled client"] if len(rows[0]) > 3 else header, rows)


def _aggregation(results: Results) -> Iterator[str]:
    found = results["aggregation"]
    seconds, copying = float(np.median(found["seconds"])), found["copy_seconds"]
    limit = found["memory_limit_bytes"]
    yield (
        "One round of FedBCGD through the real pool: a model as large as ViT-Base, six blocks, 48 clients that upload "
        "without training, 4 hosts on this machine. Memory is the increase of all processes over the idle pool."
    )
    yield ""
    yield from _table(
        ["", "measured", "limit", "met"],
        [
            [
                "time / time to copy the uploads once",
                f"{seconds:.2f} s / {copying:.2f} s = {seconds / copying:.1f}",
                "2",
                "yes" if seconds <= 2 * copying else "no",
            ],
            [
                "peak memory",
                f"{found['memory_bytes'] / 1e9:.2f} GB",
                f"{limit / 1e9:.2f} GB: 4 models and one upload per host",
                "yes" if found["memory_bytes"] <= limit else "no",
            ],
        ],
    )


def page(results: Results) -> str:
    """Return RESULTS.md."""
    meta = results["meta"]
    lines = [
        "# Benchmark results",
        "",
        "`make bench` writes this page. The contestants take turns of a few rounds, in rotating order. Each runs alone",
        "and keeps two single-threaded processes busy. Ratios compare the medians of the same turn. E is the number of",
        "local epochs, 1 by default.",
        "",
        *(["**A quick run, with few rounds: it checks that the benchmark works.**", ""] if meta["quick"] else []),
        f"{meta['date']}; {meta['cores']} cores, {meta['cpu']}; {meta['versions']}.",
        "",
        *_image(results),
        "## Targets",
        "",
        *_targets(results),
        "## Round times",
        "",
        *_round_times(results),
        "The bare loops are FedAvg in plain PyTorch (`benchmarks/bare.py`). The settings of the peers:",
        "",
        *_settings(),
        "",
        *(["## Scaling", "", *_scaling(results)] if "scaling" in results else []),
        *(["## Aggregation of a large model", "", *_aggregation(results)] if "aggregation" in results else []),
        *(["## Overheads", "", *_overheads(results)] if "overheads" in results else []),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _overheads(results: Results) -> Iterator[str]:
    yield "FedBCGD+ with LeNet-5 on random images."
    yield ""
    yield from _table(["step", "seconds"], [[step, f"{value:.3f}"] for step, value in results["overheads"].items()])


def _plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis with plain numbers, even if it covers less than a decade."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def _draw_rounds(axes: Any, name: str, workload: Results) -> None:
    contestants = workload["contestants"]
    spread = np.array([_quartiles(found["seconds"]) for found in contestants.values()])
    errors = np.stack([spread[:, 1] - spread[:, 0], spread[:, 2] - spread[:, 1]])
    axes.errorbar(spread[:, 1], list(contestants), xerr=errors, fmt="o", capsize=4, color="#0072B2")
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="seconds per round (median, quartiles)", title=name)
    axes.grid(axis="y", alpha=0.3)
    _plain_ticks(axes.xaxis)


def _draw_scaling(axes: Any, name: str, curve: Results) -> None:
    spread = np.array([_quartiles(point["seconds"]) for point in curve["points"]])
    x = [point["x"] for point in curve["points"]]
    axes.fill_between(x, spread[:, 0], spread[:, 2], alpha=0.3, color="#0072B2")
    axes.plot(x, spread[:, 1], marker="o", color="#0072B2")
    axes.set(xscale="log", yscale="log", xlabel=curve["x"], ylabel="seconds per round", title=name)
    _plain_ticks(axes.yaxis)


class _Row(NamedTuple):
    """A row of the plot."""

    part: str
    title: str
    inches: float
    draw: Callable[[Any, str, Results], None]


_ROWS = (_Row("rounds", "round times", 4.1, _draw_rounds), _Row("scaling", "scaling curves", 3.4, _draw_scaling))


def _measured_rows(results: Results) -> list[_Row]:
    return [row for row in _ROWS if results.get(row.part)]


def _image(results: Results) -> list[str]:
    """Return the lines that show the plot, if there is one."""
    text = " and ".join(row.title for row in _measured_rows(results))
    return [f"![{text.capitalize()}]({PLOT.name})", ""] if text else []


def plot(results: Results) -> Figure | None:
    """Draw the round times and the scaling curves, as far as they were measured. Return None if neither was."""
    rows = _measured_rows(results)
    if not rows:
        return None
    heights = [row.inches for row in rows]
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
    for row, part in zip(rows, parts, strict=True):
        found = results[row.part]
        for axes, name in zip(part.subplots(1, len(found), squeeze=False)[0], found, strict=True):
            row.draw(axes, name, found[name])
    return figure


def write(results: Results, folder: Path) -> None:
    """Write the raw results, the page and the plot to a folder. A full run also writes docs/scale.md."""
    (folder / DATA.name).write_text(json.dumps(results, indent=1) + "\n")
    (folder / PAGE.name).write_text(page(results))
    if "costs" in results and not results["meta"]["quick"]:
        scale.PAGE.write_text(scale.page(results["costs"]))
    if (figure := plot(results)) is not None:
        figure.savefig(folder / PLOT.name, dpi=130)
