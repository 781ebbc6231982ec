"""`raybcgd report`: runs on one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from raybcgd.cli.shared import Target, check_target, exits_cleanly, print_line
from raybcgd.errors import ConfigError
from raybcgd.report.failures import failed_runs
from raybcgd.report.page import write_report
from raybcgd.report.planned import finished_lines
from raybcgd.report.plots import is_regression
from raybcgd.report.runs import read_runs
from raybcgd.report.tensorboard import write_events


@exits_cleanly
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of runs, comparisons or sweeps.")],
    out_file: Annotated[
        Path | None, typer.Option("--out", help="The HTML file. Default: report.html in the first folder.")
    ] = None,
    target: Target = None,
    png: Annotated[bool, typer.Option("--png", help="Also write every figure as a PNG file next to the page.")] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write TensorBoard event files to this folder.")
    ] = None,
) -> None:
    """Write an HTML page about runs: results, curves, times, drift and upload per block, partition and failures."""
    check_target(target)
    runs = read_runs(folders)
    if target is not None and is_regression({run.label: [run.records] for run in runs}):
        raise ConfigError(f"--target {target:g} is an accuracy, but the runs have only losses (regression); remove it")
    goal = runs[0].config.metrics.target if target is None else target  # a comparison sets it in all its runs
    if tensorboard is not None:
        write_events(runs, tensorboard)
        print_line(f"events: {tensorboard}; show them with `tensorboard --logdir {tensorboard}`")
    page = out_file or folders[0] / "report.html"
    failed = failed_runs(folders, runs)
    lines = finished_lines(folders, failed)
    for path in write_report(runs, goal, page, png, failed, asked=target is not None, lines=lines):
        print_line(f"written: {path}")
