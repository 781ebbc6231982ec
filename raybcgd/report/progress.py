"""The progress of a run: a bar on a terminal, one line per round elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import monotonic
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from raybcgd.record.rounds import RoundRecord

_SMOOTHING = 0.3
"""Weight of the last round in the seconds per round shown."""


class Watcher(Protocol):
    """What a run reports its progress to."""

    def announce(self, stage: str) -> None:
        """Show the start of a stage that takes seconds."""

    def observe(self, record: RoundRecord) -> None:
        """Show a finished round."""


class Display:
    """Shows runs on a console. Default: shows nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(quiet=True)

    @contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """Show that a stage is running, and afterwards how long it took."""
        started = monotonic()
        with self.console.status(f"{text} …") if self.console.is_terminal else nullcontext():
            if not self.console.is_terminal:
                self.console.print(f"{text} …")
            yield
        self.console.print(f"{text} took {monotonic() - started:.1f} s", highlight=False)

    @contextmanager
    def run(self, label: str, rounds: int) -> Iterator[Watcher]:
        """Provide a watcher for a run of `rounds` rounds."""
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
    """Smoothed seconds per round."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def describe(self, record: RoundRecord) -> str:
        """Return seconds per round and clients per second."""
        seconds = record.timing.seconds
        old = seconds if self._seconds is None else self._seconds
        self._seconds = (1 - _SMOOTHING) * old + _SMOOTHING * seconds
        clients = len(record.participants) / max(self._seconds, 1e-9)
        return f"{self._seconds:.2f} s/round  {clients:.0f} clients/s"


class _Bar:
    """A progress bar."""

    def __init__(self, label: str, rounds: int, bar: Progress) -> None:
        self._bar, self._pace = bar, _Pace()
        self._task = bar.add_task(label, total=rounds, news="")
        self._accuracy = ""

    def announce(self, stage: str) -> None:
        self._bar.update(self._task, news=f"{stage} …")

    def observe(self, record: RoundRecord) -> None:
        self._accuracy = _quality(record) or self._accuracy
        news = f"{self._accuracy}  {_upload(record)}  {self._pace.describe(record)}"
        self._bar.update(self._task, completed=record.round + 1, news=news)


class _Lines:
    """One line per round, for logs."""

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
        news = f"{_quality(record)}  {_upload(record)}  {self._pace.describe(record)}".strip()
        self._print(f"round {record.round + 1}/{self._rounds}  {news}")

    def _end_stage(self) -> None:
        seconds = monotonic() - self._since
        if self._stage is not None and seconds >= 1:
            self._print(f"{self._stage} took {seconds:.1f} s")
        self._stage = None


def _quality(record: RoundRecord) -> str:
    accuracy, loss = record.quality.accuracy, record.quality.loss
    return "" if accuracy is None or loss is None else f"accuracy {accuracy:.1%}  loss {loss:.3f}"


def _upload(record: RoundRecord) -> str:
    return f"upload {record.traffic.upload_d_total:.1f} d"
