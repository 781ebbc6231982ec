"""Read the progress of a run from the log of its job."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from raybcgd.report.bars import RunBar, Screen
from raybcgd.report.progress import RoundLine, parse_line


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

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._bars: dict[str, RunBar] = {}
        self._rest = ""

    def write(self, text: str) -> None:
        """Show a part of the log. Lines may be split between parts."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._show(line)

    def end(self) -> None:
        """Show the last line if it has no newline, and end the bars, because runs may have failed."""
        if self._rest:
            self.write("\n")
        for bar in self._bars.values():
            bar.end("")

    def _show(self, line: str) -> None:
        found, console = parse_line(line), self._screen.console
        if found is None or not console.is_terminal:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            return
        if found.label not in self._bars:
            self._bars[found.label] = self._screen.add(found.label)
        found.show(self._bars[found.label])


@contextmanager
def log_bar(console: Console) -> Iterator[LogBar]:
    """Show a log on a console while the block runs."""
    with Screen(console).live() as screen:
        shown = LogBar(screen)
        yield shown
        shown.end()
