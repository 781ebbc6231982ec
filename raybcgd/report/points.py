"""The progress of a sweep, whose runs are in other processes."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from raybcgd.record.rounds import RoundLog
from raybcgd.report.bars import Screen, duration
from raybcgd.report.progress import Display
from raybcgd.report.wrapping import print_text
from raybcgd.storage import RunFolder

_POLL_SECONDS = 1.0
_ENOUGH_ROUNDS = 20
"""The time left is estimated after this many rounds, or as many as the shortest point is expected to have. The first
rounds include the start of Tune."""


class Points:
    """The rounds of all points, counted in the logs of their runs. Runs on other nodes count when they end."""

    def __init__(self, display: Display, folders: Sequence[Path], rounds: Sequence[int]) -> None:
        self._display, self._folders = display, folders
        self._rounds = list(rounds)
        """Rounds that each point is expected to run, or has run if it has ended."""
        self._ended: set[int] = set()
        self.screen, self._started = Screen(display.console), monotonic()
        self._bar = self.screen.add("sweep", sum(rounds))
        self._planned = tuple(rounds)
        self._before = [self._done(number) for number in range(len(rounds))]
        """Rounds of each point before a resume, which took no time."""

    def end(self, number: int, line: str, failed: bool = False) -> None:
        """Mark a point as ended, and print a line about it."""
        if (logged := self._done(number)) or failed:  # otherwise the run is on another node
            self._rounds[number] = logged
        self._ended.add(number)
        self.update()
        done = f"{len(self._ended)} of {len(self._rounds)} points done"
        print_text(self._display.console, f"{line}  ({done}{f', {self.left}' if self.left else ''})")

    @property
    def left(self) -> str:
        """The time left, if it is known."""
        return "" if len(self._ended) == len(self._rounds) else self._bar.texts.get("left", "")

    def update(self) -> None:
        """Count the rounds again."""
        done = [self._done(number) for number in range(len(self._rounds))]
        self._bar.done, self._bar.rounds = sum(done), sum(self._rounds)
        if len(self._ended) == len(done):
            self._bar.end(f"{len(done)} points done")
            self.screen.changed()
            return
        self._bar.texts["stage"] = f"{len(self._ended)} of {len(done)} points done"
        # A resumed run starts at its last checkpoint, and runs the rounds after it again.
        self._before = list(map(min, self._before, done))
        ran, remaining = sum(done) - sum(self._before), sum(self._rounds) - sum(done)
        seconds = (monotonic() - self._started) / max(1, ran)
        enough = ran >= min(_ENOUGH_ROUNDS, *self._planned)
        self._bar.texts["left"] = f"{duration(seconds * remaining)} left" if enough and remaining else ""
        self.screen.changed()

    def _done(self, number: int) -> int:
        if number in self._ended:
            return self._rounds[number]
        log = RoundLog(RunFolder(self._folders[number]).rounds)
        return min(self._rounds[number], log.content().count(b"\n"))


@contextmanager
def showing_points(display: Display, folders: Sequence[Path], rounds: Sequence[int]) -> Iterator[Points]:
    """Show the progress of a sweep while the block runs."""
    points, ended = Points(display, folders, rounds), threading.Event()

    def poll() -> None:
        while not ended.wait(_POLL_SECONDS):
            points.update()

    thread = threading.Thread(target=poll, daemon=True)
    points.update()
    thread.start()
    try:
        with points.screen.live():
            yield points
    finally:
        ended.set()
        thread.join()
