"""What a run looks like while it runs: a bar on a terminal, a line a round elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import monotonic
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from raybcgd.record.rounds import RoundRecord

_SMOOTHING = 0.3
"""The weight of the newest round in the seconds that are shown."""


class Watcher(Protocol):
    """Somebody who looks at a run."""

    def announce(self, stage: str) -> None:
        """The run is about to do something that takes seconds."""

    def observe(self, record: RoundRecord) -> None:
        """A round is done."""


class Display:
    """Shows runs on a console; on a quiet one, nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(quiet=True)

    @contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """Say that something takes a while, and how long it took."""
        started = monotonic()
        with self.console.status(f"{text} …") if self.console.is_terminal else nullcontext():
            if not self.console.is_terminal:
                self.console.print(f"{text} …")
            yield
        self.console.print(f"{text} took {monotonic() - started:.1f} s", highlight=False)

    @contextmanager
    def run(self, label: str, rounds: int) -> Iterator[Watcher]:
        """A watcher of a run of so many rounds, for as long as the block lasts."""
        if not self.console.is_terminal:
            yield _Lines(label, rounds, self.console)
            return
        columns = (
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[news]}", markup=False),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console) as bar:
            yield _Bar(label, rounds, bar)


class _Pace:
    """Smoothed seconds a round."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def describe(self, record: RoundRecord) -> str:
        """Seconds a round and clients a second."""
        old = record.seconds if self._seconds is None else self._seconds
        self._seconds = (1 - _SMOOTHING) * old + _SMOOTHING * record.seconds
        clients = len(record.participants) / max(self._seconds, 1e-9)
        return f"{self._seconds:.2f} s/round  {clients:.0f} clients/s"


class _Bar:
    """A bar that rich keeps up to date."""

    def __init__(self, label: str, rounds: int, bar: Progress) -> None:
        self._bar, self._pace = bar, _Pace()
        self._task = bar.add_task(label, total=rounds, news="")
        self._accuracy = ""

    def announce(self, stage: str) -> None:
        self._bar.update(self._task, news=f"{stage} …")

    def observe(self, record: RoundRecord) -> None:
        self._accuracy = _quality(record) or self._accuracy
        news = f"{self._accuracy}  upload {record.upload_d_total:.1f} d  {self._pace.describe(record)}"
        self._bar.update(self._task, completed=record.round + 1, news=news)


class _Lines:
    """A line a round, for logs."""

    def __init__(self, label: str, rounds: int, console: Console) -> None:
        self._label, self._rounds, self._console = label, rounds, console
        self._pace = _Pace()
        self._stage: str | None = None
        self._since = monotonic()

    def _print(self, text: str) -> None:
        self._console.print(f"{self._label}: {text}", markup=False, highlight=False, soft_wrap=True)

    def announce(self, stage: str) -> None:
        self._end_stage()
        self._print(f"{stage} …")
        self._stage, self._since = stage, monotonic()

    def observe(self, record: RoundRecord) -> None:
        self._end_stage()
        news = f"{_quality(record)}  upload {record.upload_d_total:.1f} d  {self._pace.describe(record)}".strip()
        self._print(f"round {record.round + 1}/{self._rounds}  {news}")

    def _end_stage(self) -> None:
        seconds = monotonic() - self._since
        if self._stage is not None and seconds >= 1:
            self._print(f"{self._stage} took {seconds:.1f} s")
        self._stage = None


def _quality(record: RoundRecord) -> str:
    if record.accuracy is None or record.loss is None:
        return ""
    return f"accuracy {record.accuracy:.1%}  loss {record.loss:.3f}"
