"""What the commands have in common: their options, the two consoles, and how errors end them."""

import functools
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NoReturn, ParamSpec

import typer
from rich.console import Console

from raybcgd.errors import ConfigError, RunError
from raybcgd.record.logs import log_as_json
from raybcgd.report.progress import Display
from raybcgd.storage import in_job

P = ParamSpec("P")

out = Console()
err = Console(stderr=True)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The experiment as a TOML file.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a setting, such as algorithm.lr=0.05. May be repeated."),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="The folder for the files; a new one under runs/ unless given.")
]

Log = Annotated[
    Literal["auto", "json"],
    typer.Option("--log", help="json: rounds and warnings as JSON lines on standard error, in place of the progress."),
]

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C has ended."""


class Interrupted(Exception):
    """Ctrl-C, with what to tell the user."""


def ends_clearly(command: Callable[P, None]) -> Callable[P, None]:
    """One line in place of a traceback for what is the user's to mend: exit code 2 for settings, 1 for a failed run."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except ConfigError as error:
            _end(f"error: {error}", 2)
        except RunError as error:
            _end(f"error: {error}", 1)
        except Interrupted as news:
            _end(str(news), INTERRUPTED)
        except KeyboardInterrupt:
            _end("interrupted", INTERRUPTED)

    return guarded


def display(log: Literal["auto", "json"]) -> Display:
    """How runs are shown: a bar on a terminal, a line a round in a job, or structured records."""
    if log == "auto":
        return Display(out)
    log_as_json()
    return Display()


def say_where(folder: Path) -> None:
    """In a job, whose reader is on another machine: where the files go."""
    if in_job():
        out.print(f"files: {socket.gethostname()}:{folder.absolute()}", markup=False, highlight=False, soft_wrap=True)


def _end(line: str, code: int) -> NoReturn:
    err.print(" ".join(line.split()), markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)
