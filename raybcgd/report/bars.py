"""Progress bars of runs, on a terminal or in a notebook. They fit any width of at least 60 columns."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from time import monotonic
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

_ORDER = ("rounds", "stage", "accuracy", "loss", "upload", "pace", "left")
"""The texts to the right of a bar, from left to right."""
_PRIORITY = ("rounds", "stage", "left", "accuracy", "pace", "upload", "loss")
"""The same texts. Those at the end are left out first if a line is too short."""
_SHORTEST_BAR, _LONGEST_BAR = 6, 30
_SHORTEST_LABEL = 24
"""A label up to this length is never shortened: "[5/8] FedBCGD+, seed 0"."""
_WIDE, _NOTEBOOK_COLUMNS = 80, 100


def duration(seconds: float) -> str:
    """Return a rounded duration, such as "40 s", "3 min" or "2 h 5 min"."""
    minutes = round(seconds / 60)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 round" or "3 rounds"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shorten(label: str, width: int) -> str:
    """Cut out the middle of a label: labels differ at the start, such as "[3/8] ", or at the end, such as "seed 2".

    The last part after a comma stays whole if it takes at most half the width.
    """
    if len(label) <= width:
        return label
    comma = label.rfind(", ")
    tail = label[comma:] if comma > 0 and len(label) - comma <= width // 2 else label[-(width // 3) :]
    return f"{label[: width - 1 - len(tail)]}…{tail}"


class RunBar:
    """The bar of one run: label, rounds, what it waits for, time left and, if they fit, quality, pace and upload."""

    def __init__(self, label: str, rounds: int | None = None) -> None:
        self.label, self.rounds, self.done = label, rounds, 0
        self.texts: dict[str, str] = {}
        """By their names in `_ORDER`."""
        self._since = monotonic()
        self._spinner = Spinner("dots")
        self._ended = False

    def wait_for(self, stage: str | None) -> None:
        """Show what the run waits for, and how long. None: show the results of the rounds instead."""
        self._since = monotonic()
        self.texts.pop("stage", None)
        if stage is not None:
            self.texts["stage"] = stage

    def end(self, text: str) -> None:
        """Show that the run has ended. The text takes the place of the time left."""
        self.wait_for(None)
        self._ended, self.texts["left"] = True, text

    def parts(self, width: int) -> tuple[str, list[str]]:
        """Return the label and the texts that fit into a line beside the shortest bar."""
        label = shorten(self.label, max(_SHORTEST_LABEL, width // 3))
        texts = {name: text for name, text in self.texts.items() if text}
        if "stage" in texts:
            waited = monotonic() - self._since
            texts["stage"] += " …" if waited < 1 else f" … {duration(waited)}"
        if self.rounds:
            texts["rounds"] = f"{self.done}/{self.rounds}"
            if self.done >= self.rounds and not self._ended:
                texts.pop("left", None)  # the time of later runs, which have their own bars
        if "accuracy" in texts and width < _WIDE:
            texts["accuracy"] = texts["accuracy"].removeprefix("accuracy ")
        room = width - len(label) - 3 - (_SHORTEST_BAR + 1 if self.rounds else 0)
        shown: list[str] = []
        for name in (name for name in _PRIORITY if name in texts):
            room -= len(texts[name]) + 2
            if room < 0 and shown:
                break
            shown.append(name)
        return label, [texts[name] for name in _ORDER if name in shown]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        label, parts = self.parts(options.max_width)
        finished = self.rounds is not None and self.done >= self.rounds and "stage" not in self.texts
        finished = finished or self._ended
        cells: list[Any] = [" " if finished else self._spinner, Text(label, style="bold", no_wrap=True)]
        if self.rounds:
            used = len(label) + 3 + sum(len(part) + 2 for part in parts)
            bar = max(_SHORTEST_BAR, min(_LONGEST_BAR, options.max_width - used - 1))
            cells.append(ProgressBar(self.rounds, self.done, width=bar))
        line = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
        for _ in (*cells, *parts):
            line.add_column(no_wrap=True)
        line.add_row(*cells, *(Text(f"{part} ") for part in parts))
        yield line

    def plain(self, width: int = _NOTEBOOK_COLUMNS) -> str:
        """Return the bar as text without colours."""
        label, parts = self.parts(width)
        full = 0 if not self.rounds else _SHORTEST_BAR * self.done // self.rounds
        bar = ["█" * full + "░" * (_SHORTEST_BAR - full)] if self.rounds else []
        return "  ".join([label, *bar, *parts])


class Screen:
    """The bars of some runs. Shows nothing if the console cannot show bars."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars: list[RunBar] = []
        self._handle: Any = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.bars

    def add(self, label: str, rounds: int | None = None) -> RunBar:
        """Add the bar of a run."""
        self.bars.append(RunBar(label, rounds))
        return self.bars[-1]

    @contextmanager
    def live(self, transient: bool = False) -> Iterator["Screen"]:
        """Show the bars while the block runs. With `transient`, remove them afterwards."""
        if self.console.is_terminal and not self.console.quiet:
            with Live(self, console=self.console, refresh_per_second=8, transient=transient):
                yield self
        else:
            yield self
            self.changed()

    def changed(self) -> None:
        """Update a notebook's cell in place. A terminal refreshes by itself."""
        if self.console.is_jupyter and not self.console.quiet:
            display = import_module("IPython.display").display  # every notebook has it
            content = {"text/plain": "\n".join(bar.plain() for bar in self.bars)}
            if self._handle is None:
                self._handle = display(content, raw=True, display_id=True)
            else:
                self._handle.update(content, raw=True)
