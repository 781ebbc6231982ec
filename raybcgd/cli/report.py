"""`raybcgd report`: runs on one page."""

from pathlib import Path
from typing import Annotated

import typer

from raybcgd.cli.shared import ends_clearly, out
from raybcgd.errors import ConfigError


@ends_clearly
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of runs, comparisons or sweeps.")],
    out_file: Annotated[
        Path | None, typer.Option("--out", help="The page; report.html in the first folder unless given.")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="The accuracy to which uploads are counted; the comparison's unless given."),
    ] = None,
    png: Annotated[bool, typer.Option("--png", help="Also write every figure as a PNG beside the page.")] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write TensorBoard's event files there.")
    ] = None,
) -> None:
    """Put runs on one HTML page: table, curves, times, drift and upload by block, partition, failures."""
    from raybcgd.report.page import write_report  # drawing takes a second to import
    from raybcgd.report.runs import read_runs, target_of
    from raybcgd.report.tensorboard import write_events

    if target is not None and not 0 < target <= 1:
        raise ConfigError(f"--target {target:g} is no accuracy; give one between 0 and 1, such as 0.9")
    runs = read_runs(folders)
    goal = target_of(folders, runs) if target is None else target
    if tensorboard is not None:
        write_events(runs, tensorboard)
        out.print(f"events: tensorboard --logdir {tensorboard}", highlight=False, soft_wrap=True)
    for path in write_report(runs, goal, out_file or folders[0] / "report.html", png):
        out.print(f"written: {path}", highlight=False, soft_wrap=True)
