"""`raybcgd cluster render`."""

from pathlib import Path
from typing import Annotated

import typer

from raybcgd.cli.shared import exits_cleanly, print_line
from raybcgd.cluster.kubernetes import run_settings
from raybcgd.cluster.render import read_values, render, write_files

cluster = typer.Typer(no_args_is_help=True)


@cluster.callback()
def _group() -> None:
    """Write the files of a cluster."""


@cluster.command("render")
@exits_cleanly
def render_files(
    values: Annotated[Path, typer.Argument(metavar="VALUES", help="Values of the cluster (TOML).")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files. Default: the path of VALUES without its suffix.")
    ] = None,
) -> None:
    """Write Kubernetes objects, or a file for `ray up`, from one values file."""
    folder = out or values.with_suffix("")
    described = read_values(values)
    files = render(described, values.name)
    write_files(files, folder)
    print_line("\n".join(str(folder / name) for name in files))
    settings = run_settings(described, "NAME-OF-THE-RUN")
    print_line("runs use this cluster with: " + " ".join(f"--set {setting}" for setting in settings))
