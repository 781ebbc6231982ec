"""Read the progress of a run from the log of its job."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_ROUND = re.compile(
    r"^(?P<label>.*): round (?P<round>\d+)/(?P<rounds>\d+)  (?:accuracy (?P<accuracy>[\d.]+)%  loss \S+ +)?"
    r"(?P<status>upload .*?  (?P<seconds>[\d.]+) s/round  .*)$"
)


class RoundLine(NamedTuple):
    """A finished round, as `raybcgd.report.progress` prints it."""

    label: str
    round: int
    rounds: int
    accuracy: float | None
    """In percent; None if the round was not evaluated."""
    seconds: float
    status: str


def parse_line(line: str) -> RoundLine | None:
    """Return the round that a line reports, or None."""
    found = _ROUND.match(line)
    if found is None:
        return None
    accuracy = None if found["accuracy"] is None else float(found["accuracy"])
    numbers = int(found["round"]), int(found["rounds"]), accuracy, float(found["seconds"])
    return RoundLine(found["label"], *numbers, found["status"])


def last_round(log: str) -> RoundLine | None:
    """Return the last round in a log, with the last known accuracy, or None."""
    last, accuracy = None, None
    for line in log.splitlines():
        found = parse_line(line)
        if found is not None:
            accuracy = accuracy if found.accuracy is None else found.accuracy
            last = found._replace(accuracy=accuracy)
    return last


class LogBar:
    """Shows rounds as a progress bar, and all other lines of a log as they are."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}
        self._rest = ""

    def write(self, text: str) -> None:
        """Show a part of the log. Lines may be split between parts."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._show(line)

    def end(self) -> None:
        """Show a last line without an end."""
        if self._rest:
            self.write("\n")

    def _show(self, line: str) -> None:
        found = parse_line(line)
        if found is None or not self._bar.console.is_terminal:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
            return
        if found.label not in self._tasks:
            self._tasks[found.label] = self._bar.add_task(found.label, total=found.rounds, quality="", status="")
        task = self._tasks[found.label]
        if found.accuracy is not None:
            self._bar.update(task, quality=f"accuracy {found.accuracy:.1f}%")
        self._bar.update(task, completed=found.round, status=found.status)


@contextmanager
def log_bar(console: Console) -> Iterator[LogBar]:
    """Show a log on a console while the block runs."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[quality]}"),
        TextColumn("{task.fields[status]}", markup=False),
        TimeElapsedColumn(),
        console=console,
    )
    with bar if console.is_terminal else nullcontext():
        shown = LogBar(bar)
        yield shown
        shown.end()
