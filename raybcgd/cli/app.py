"""The commands put together."""

import os
import sys
import warnings
from typing import Annotated

import typer

from raybcgd.cli.blocks import plan
from raybcgd.cli.data import data
from raybcgd.cli.methods import methods
from raybcgd.cli.report import report
from raybcgd.cli.runs import compare, resume, sweep, train
from raybcgd.cli.settings import settings
from raybcgd.cli.shared import out
from raybcgd.cli.submit import submit
from raybcgd.record.summary import own_version

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (train, resume, compare, sweep, report, submit, plan, methods, settings):
    app.command()(command)
app.add_typer(data, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"raybcgd {own_version()}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Federated block-coordinate gradient descent, simulated on Ray."""


def main() -> None:
    """The console script."""
    # As with `python -m`: what a config names as package.module:callable may lie in the current folder. Ray's workers
    # look there of themselves.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    # Arrays from Ray's object store are read-only, and everything of ours that wraps them only reads.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    app()
