"""The command-line application."""

import os
import sys
import warnings
from typing import Annotated

import typer

from raybcgd.cli.blocks import blocks
from raybcgd.cli.cluster import cluster
from raybcgd.cli.data import data
from raybcgd.cli.export import export
from raybcgd.cli.list_settings import settings
from raybcgd.cli.methods import methods
from raybcgd.cli.new import new
from raybcgd.cli.paper import paper
from raybcgd.cli.report import report
from raybcgd.cli.runs import compare, resume, sweep, train
from raybcgd.cli.shared import out
from raybcgd.cli.submit import jobs, submit
from raybcgd.cli.watch import watch
from raybcgd.version import VERSION

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
_COMMANDS = (new, train, resume, compare, sweep, paper, report, export, watch, submit, jobs, blocks, methods, settings)
for command in _COMMANDS:
    app.command()(command)
app.command("plan", hidden=True)(blocks)  # the former name of `blocks`
app.add_typer(data, name="data")
app.add_typer(cluster, name="cluster")


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"raybcgd {VERSION}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated block-coordinate gradient descent, simulated on Ray."""


def main() -> None:
    """Run a command."""
    # A config may name modules in the current folder. The folder comes last, so that it cannot shadow libraries.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    # Arrays from Ray's object store are read-only, and we never write to tensors that share their memory.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    app()
