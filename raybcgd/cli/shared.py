"""Options, consoles and exit codes that the commands share."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NoReturn, ParamSpec

import typer
from rich.console import Console

from raybcgd.errors import ConfigError, RunError
from raybcgd.interrupts import ended, handled
from raybcgd.record.logs import log_as_json
from raybcgd.report.progress import Display
from raybcgd.report.wrapping import print_text
from raybcgd.storage import JOB_RUNS, in_job

P = ParamSpec("P")

out = Console(emoji=False)  # paths and references may contain text such as :b:
err = Console(stderr=True, emoji=False)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="Experiment config (TOML).")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, such as algorithm.lr=0.05. Repeatable."),
]
Target = Annotated[float | None, typer.Option(help="Target accuracy. Default: that of the first run.")]


def _outside_the_job(out_folder: Path | None) -> Path | None:
    """In a Ray job, move a relative path out of the job's working directory, which Ray deletes."""
    return Path.home() / JOB_RUNS / out_folder if out_folder is not None and in_job() else out_folder


Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder for the results. Default: a new folder under runs/.", callback=_outside_the_job),
]
Resume = Annotated[
    Literal["never", "auto"],
    typer.Option(help="auto: resume the run in --out or at checkpoint.address, if there is one."),
]
Log = Annotated[
    Literal["auto", "json"],
    typer.Option("--log", help="json: log rounds and warnings as JSON lines to standard error; show no progress."),
]


class Interrupted(Exception):
    """Ctrl-C, SIGTERM or SIGHUP, with a message for the user."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def exits_cleanly(command: Callable[P, None]) -> Callable[P, None]:
    """Print expected errors as one line.

    Exit with 2 for an invalid config, 1 for a failed run, 130 after Ctrl-C, 143 after SIGTERM and 129 after SIGHUP.
    """

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with handled():
                command(*args, **kwargs)
        except ConfigError as error:
            _exit(f"error: {error}", 2)
        except RunError as error:
            _exit(f"error: {error}", 1)
        except Interrupted as message:
            _exit(str(message), message.exit_code)
        except KeyboardInterrupt as end:
            _exit(*ended(end))

    return guarded


def check_target(target: float | None) -> None:
    """Raise an error if `--target` is not an accuracy."""
    if target is not None and not 0 < target <= 1:
        raise ConfigError(f"--target {target:g} is not an accuracy; use a number between 0 and 1, such as 0.9")


def display(log: Literal["auto", "json"]) -> Display:
    """Return the progress display: a bar on a terminal, lines elsewhere, nothing with JSON logs."""
    if log == "auto":
        return Display(out)
    log_as_json()
    return Display()


def print_line(text: str) -> None:
    """Print text verbatim: without markup or colours, and wrapped only on a terminal, between words."""
    print_text(out, text)


def _exit(line: str, code: int) -> NoReturn:
    print_text(err, " ".join(line.split()))
    raise typer.Exit(code)
