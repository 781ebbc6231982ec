"""The points of a sweep: their ranks, their table, and whether the best one is at the edge of the grid."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from raybcgd.record.summary import Ranking
from raybcgd.report.style import percentage, shown_d
from raybcgd.report.tables import percent, shown_loss


@dataclass(frozen=True)
class Point:
    """A point of the grid and its results."""

    number: int
    settings: dict[str, Any]
    """By key, such as "algorithm.lr"."""
    results: dict[str, Any]
    """The run's summary and its row in a comparison. Empty if it failed."""
    error: str | None = None
    broken: bool = False
    """Whether it failed for a reason other than its settings. The sweep then has no best point."""

    @property
    def label(self) -> str:
        """The settings as text."""
        return settings_text(self.settings)


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings as text, such as "lr = 0.1, epochs = 2"."""
    names = short_names(settings)
    return ", ".join(f"{names[key]} = {value}" for key, value in settings.items())


def point_label(settings: Mapping[str, Any]) -> str:
    """Return settings as a label of a figure, such as "lr 0.1, epochs 2"."""
    names = short_names(settings)
    return ", ".join(f"{names[key]} {value}" for key, value in settings.items())


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the end of each key, as long as needed to tell the keys apart: "lr" for "algorithm.lr"."""
    parts = {key: key.split(".") for key in keys}
    names = {}
    for key, words in parts.items():
        ends = (".".join(words[-count:]) for count in range(1, len(words) + 1))
        others = [f".{other}" for other in parts if other != key]
        names[key] = next((end for end in ends if not any(other.endswith(f".{end}") for other in others)), key)
    return names


_EXTRA = {"final_accuracy": "final", "last_tenth_loss": "last tenth loss", "best_loss": "best loss"}
"""Headings of the metrics that the table of a classification has only if they rank."""


def ranked(points: Sequence[Point], metric: Ranking) -> list[Point]:
    """Return the points that have a result, the best first."""
    sign = 1 if metric == "upload_d_to_target" or metric.endswith("loss") else -1
    known = [point for point in points if point.results.get(metric) is not None]
    return sorted(known, key=lambda point: sign * point.results[metric])


def points_table(points: Sequence[Point], metric: Ranking, validation_share: float) -> Table:
    """Return the points as a table for the terminal, the best first."""
    order = ranked(points, metric)
    names = short_names(points[0].settings)
    held_out = f"on the {percentage(validation_share)} of the training samples held out for validation"
    runs = "1 run" if len(points) == 1 else f"{len(points)} runs"
    table = Table(title=f"{runs}, ranked by {metric} {held_out}", title_justify="left")
    regression = order[0].results["best_accuracy"] is None
    target = [] if regression else [f"d to {percentage(order[0].results['target'])}"]
    # The metric that ranks, if it is not in the table anyway.
    extra = {} if regression or metric not in _EXTRA else {metric: _EXTRA[metric]}
    for heading in ("rank", *names.values(), "last tenth", "best", *extra.values(), *target):
        table.add_column(heading, justify="right", overflow="fold")
    for point in [*order, *(point for point in points if point not in order)]:
        rank = str(order.index(point) + 1) if point in order else "-"
        results = ["failed"] if point.error is not None else _results(point.results, regression, extra)
        cells = [rank, *(str(value) for value in point.settings.values()), *results]
        table.add_row(*cells, style="bold" if point is order[0] else None)
    return table


def _results(found: Mapping[str, Any], regression: bool, extra: Iterable[str]) -> list[str]:
    if regression:
        return [shown_loss(found[name]) for name in ("last_tenth_loss", "best_loss")]
    names = ("last_tenth_accuracy", "best_accuracy", *extra)
    shown = [shown_loss(found[name]) if name.endswith("loss") else percent(found[name]) for name in names]
    upload = found["upload_d_to_target"]
    return [*shown, "never" if upload is None else shown_d(upload)]


def edge_hints(points: Sequence[Point], best: Point) -> list[str]:
    """Return a line for each setting whose best value is the lowest or the highest of at least three numbers."""
    lines = []
    for key, value in best.settings.items():
        values = {point.settings[key] for point in points if _is_number(point.settings[key])}
        if _is_number(value) and len(values) >= 3 and value in (low := min(values), max(values)):
            edge, more = ("lowest", "lower") if value == low else ("highest", "higher")
            lines.append(f"{key} = {value} is the {edge} value of the grid; also try {more} ones")
    return lines


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
