"""The progress of a run: a bar on a terminal, one line per round elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from raybcgd.record.rounds import RoundRecord


class Display:
    """Shows the progress of runs on a console. Default: shows nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(quiet=True)

    @contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """Show that a stage is running, and then how long it took."""
        started = monotonic()
        if not self.console.is_terminal:
            self.console.print(f"{text} …")
        with self.console.status(f"{text} …"):
            yield
        self.console.print(f"{text} took {monotonic() - started:.1f} s", highlight=False)

    @contextmanager
    def run(self, label: str, rounds: int) -> Iterator["Watcher"]:
        """Yield a watcher for a run of `rounds` rounds."""
        bar = Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[quality]}"),
            TextColumn("{task.fields[status]}", markup=False),
            TimeElapsedColumn(),
            console=self.console,
        )
        with bar if self.console.is_terminal else nullcontext():
            yield Watcher(label, rounds, bar)


class Watcher:
    """Shows the progress of one run. The bar is visible only on a terminal, the lines only elsewhere."""

    def __init__(self, label: str, rounds: int, bar: Progress) -> None:
        self._label, self._rounds, self._bar = label, rounds, bar
        self._task = bar.add_task(label, total=rounds, quality="", status="")
        self._stage: str | None = None
        self._since = monotonic()

    def announce(self, stage: str) -> None:
        """Show the start of a stage that takes seconds."""
        self._end_stage()
        self._stage, self._since = stage, monotonic()
        self._bar.update(self._task, status=f"{stage} …")
        self._print(f"{stage} …")

    def observe(self, record: RoundRecord) -> None:
        """Show a finished round."""
        self._end_stage()
        line = f"round {record.round + 1}/{self._rounds}  "
        if record.quality.accuracy is not None and record.quality.loss is not None:
            quality = f"accuracy {record.quality.accuracy:.1%}  loss {record.quality.loss:.3f} "
            self._bar.update(self._task, quality=quality)  # stays until the next evaluation
            line += f"{quality} "
        seconds = record.timing.seconds
        pace = f"{seconds:.2f} s/round  {len(record.participants) / max(seconds, 1e-9):.0f} clients/s"
        status = f"upload {record.traffic.upload_d_total:.1f} d  {pace}"
        self._bar.update(self._task, completed=record.round + 1, status=status)
        self._print(line + status)

    def _end_stage(self) -> None:
        seconds = monotonic() - self._since
        if self._stage is not None and seconds >= 1:
            self._print(f"{self._stage} took {seconds:.1f} s")
        self._stage = None

    def _print(self, text: str) -> None:
        if not self._bar.console.is_terminal:
            self._bar.console.print(f"{self._label}: {text}", markup=False, highlight=False, soft_wrap=True)
