"""The progress of runs: bars on a terminal and in a notebook, one line per round elsewhere."""

import logging
import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import NamedTuple

from rich.console import Console

from raybcgd.errors import ConfigError
from raybcgd.record.rounds import RoundRecord
from raybcgd.report.bars import RunBar, Screen, counted, duration
from raybcgd.report.style import shown_d

log = logging.getLogger(__name__)

_RECENT_ROUNDS = 20
"""The time left is estimated from this many rounds."""
_ROUND = re.compile(
    r"^(?P<label>.*): round (?P<round>\d+)/(?P<rounds>\d+)  (?:accuracy (?P<accuracy>[\d.]+)%  )?"
    r"(?:loss (?P<loss>\S+)  )?"
    r"upload (?P<upload>\S+) d  (?P<seconds>[\d.]+) s/round  (?P<speed>\d+) clients/s(?:  (?P<left>.*) left)?$"
)


class RoundLine(NamedTuple):
    """A finished round, as a line of a log shows it."""

    label: str
    round: int
    rounds: int
    accuracy: float | None
    """In percent; None if the round was not evaluated, or for regression."""
    loss: float | None
    upload: float
    """In units of d, of all rounds so far."""
    seconds: float
    speed: float
    """In clients per second."""
    left: str | None = None
    """The estimated time left."""

    def __str__(self) -> str:
        quality = "" if self.accuracy is None else f"accuracy {self.accuracy:.1f}%  "
        quality += "" if self.loss is None else f"{self._loss}  "
        pace = f"upload {shown_d(self.upload)} d  {self.seconds:.2f} s/round  {self.speed:.0f} clients/s"
        left = f"  {self.left} left" if self.left else ""
        return f"{self.label}: round {self.round}/{self.rounds}  {quality}{pace}{left}"

    @property
    def _loss(self) -> str:
        return f"loss {self.loss:.4g}" if self.accuracy is None else f"loss {self.loss:.3f}"

    def show(self, bar: RunBar) -> None:
        """Show the round on a bar. The accuracy stays until the next evaluation."""
        bar.done, bar.rounds = self.round, self.rounds
        bar.wait_for(None)
        if self.accuracy is not None:
            bar.texts["accuracy"] = f"accuracy {self.accuracy:.1f}%"
        if self.loss is not None:  # without an accuracy, the loss takes its place
            bar.texts["accuracy" if self.accuracy is None else "loss"] = self._loss
        left = f"{self.left} left" if self.left else ""
        bar.texts |= {"upload": f"upload {shown_d(self.upload)} d", "pace": f"{self.seconds:.2f} s/round", "left": left}


def parse_line(line: str) -> RoundLine | None:
    """Return the round that a line of a log shows, or None."""
    found = _ROUND.match(line)
    if found is None:
        return None
    numbers = {name: None if found[name] is None else float(found[name]) for name in ("accuracy", "loss")}
    return RoundLine(
        label=found["label"],
        round=int(found["round"]),
        rounds=int(found["rounds"]),
        **numbers,
        upload=float(found["upload"]),
        seconds=float(found["seconds"]),
        speed=float(found["speed"]),
        left=found["left"],
    )


class Display:
    """Shows the progress of runs on a console. Default: shows nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(quiet=True)
        self._recent: deque[float] = deque(maxlen=_RECENT_ROUNDS)
        self._runs, self._started, self._later_rounds = 1, 0, 0

    @contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """Show that a stage is running, and then how long it took."""
        started, screen = monotonic(), Screen(self.console)
        screen.add("").wait_for(text)
        self.print_line(f"{text} …")
        with screen.live(transient=True):
            yield
        if (seconds := monotonic() - started) >= 1:
            self.print_line(f"{text} took {seconds:.1f} s")

    def expect(self, runs: int, rounds: int) -> None:
        """Expect this many runs and rounds in total. The time left is then that of all runs."""
        self._runs, self._started, self._later_rounds = runs, 0, rounds

    @contextmanager
    def run(self, label: str, rounds: int | None = None) -> Iterator["Watcher"]:
        """Yield a watcher for a run. The watcher can learn the number of rounds later."""
        self._started += 1
        if self._runs > 1:
            label = f"[{self._started}/{self._runs}] {label}"
        screen = Screen(self.console)
        with screen.live():
            watcher = Watcher(self, screen, label)
            if rounds is not None:
                watcher.expect(rounds)
            try:
                yield watcher
            except BaseException as error:
                if isinstance(error, ConfigError) and not watcher.has_rounds:
                    screen.bars.clear()  # the config was refused
                else:
                    watcher.stop("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
                raise

    def begin(self, rounds: int) -> None:
        """Begin one of the expected runs."""
        self._later_rounds = max(0, self._later_rounds - rounds)

    def left(self, rounds: int, seconds: float, first: bool) -> str | None:
        """Return the estimated time left, with `rounds` to go after a round that took `seconds`."""
        if not first:  # the first round of a run takes longer, so it counts only while there is no other
            self._recent.append(seconds)
        known = self._recent or [seconds]
        rounds += self._later_rounds
        return duration(rounds * sum(known) / len(known)) if rounds else None

    def print_line(self, text: str) -> None:
        """Print a line if the console cannot show bars."""
        if not (self.console.is_terminal or self.console.is_jupyter):
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def as_display(progress: bool | Display) -> Display:
    """Return a display for Python code: on standard error or in the notebook, or one that shows nothing."""
    if isinstance(progress, Display):
        return progress
    return Display(Console(stderr=True)) if progress else Display()


class Watcher:
    """Shows the progress of one run."""

    def __init__(self, display: Display, screen: Screen, label: str) -> None:
        self._display, self._screen, self._label = display, screen, label
        self._bar = screen.add(label)
        self._rounds_seen, self._finite = 0, True
        self._stage: str | None = None
        self._since = monotonic()

    @property
    def has_rounds(self) -> bool:
        """Whether at least one round was shown."""
        return self._rounds_seen > 0

    def expect(self, rounds: int) -> None:
        """Set the number of rounds."""
        self._bar.rounds = rounds
        self._display.begin(rounds)

    def announce(self, stage: str, detail: str = "") -> None:
        """Show the start of a stage that takes seconds, or the progress of the current stage."""
        if stage != self._stage:
            self._end_stage()
            self._stage, self._since = stage, monotonic()
        text = f"{stage}: {detail}" if detail else stage
        self._display.print_line(f"{self._label}: {text} …")
        self._bar.wait_for(text)
        self._screen.changed()

    def observe(self, record: RoundRecord) -> None:
        """Show a finished round."""
        self._end_stage()
        # A record arrives when the next round has trained, because its evaluation overlaps that round.
        to_go = max(0, (self._bar.rounds or 0) - record.round - 2)
        left = self._display.left(to_go, record.timing.seconds, first=not self._rounds_seen)
        self._rounds_seen += 1
        line = self._line(record, left)
        self._display.print_line(str(line))
        line.show(self._bar)
        self._screen.changed()
        self._warn_about_nan(record)

    def _warn_about_nan(self, record: RoundRecord) -> None:
        """Warn once per run if a model's outputs are not finite, although its weights are."""
        loss = record.quality.loss
        if self._finite and loss is not None and not math.isfinite(loss):
            self._finite = False
            log.warning(
                "%s: the loss is %s in round %d. Outputs that are NaN count as wrong. With batch norm, invalid running "
                "variances are a common cause",
                *(self._label, loss, record.round + 1),
            )

    def finished(self, records: Sequence[RoundRecord]) -> None:
        """Show that a run had already finished."""
        self._end_stage()
        for record in records[-1:]:
            self._line(record).show(self._bar)
        self._display.print_line(f"{self._label}: already finished after {counted(len(records), 'round')}")
        self._bar.end("already finished")
        self._screen.changed()

    def _line(self, record: RoundRecord, left: str | None = None) -> RoundLine:
        done, seconds, accuracy = record.round + 1, record.timing.seconds, record.quality.accuracy
        return RoundLine(
            self._label,
            done,
            max(done, self._bar.rounds or 0),
            None if accuracy is None else 100 * accuracy,
            record.quality.loss,
            record.traffic.upload_d_total,
            seconds,
            len(record.participants) / max(seconds, 1e-9),
            left,
        )

    def end(self, limit: str | None = None) -> None:
        """Show that the run has ended, and the limit that ended it before its last round."""
        self._end_stage()
        if limit is not None:
            self._display.print_line(f"{self._label}: ended after {counted(self._bar.done, 'round')} by {limit}")
        self._bar.end("" if limit is None else f"ended by {limit.partition(' = ')[0]}")
        self._screen.changed()

    def stop(self, how: str) -> None:
        """Show that the run failed or was interrupted. Further rounds may have run whose records were not seen."""
        self._end_stage()
        done = f" after round {self._bar.done}" if self._rounds_seen else ""
        self._display.print_line(f"{self._label}: {how}{done}")
        self._bar.end(f"{how}{done}")
        self._screen.changed()

    def _end_stage(self) -> None:
        seconds = monotonic() - self._since
        if self._stage is not None and seconds >= 1:
            self._display.print_line(f"{self._label}: {self._stage} took {seconds:.1f} s")
        self._stage = None
