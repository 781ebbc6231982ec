"""`raybcgd submit`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from raybcgd.cli.shared import ConfigFile, Interrupted, Set, ends_clearly, out


@ends_clearly
def submit(
    config: ConfigFile,
    address: Annotated[
        str | None,
        typer.Option(help="The cluster's dashboard, such as http://127.0.0.1:8265; that of RAY_ADDRESS unless given."),
    ] = None,
    settings: Set = None,
    out_folder: Annotated[
        str | None,
        typer.Option("--out", help="The folder for the files, on the cluster; one in ~/raybcgd-runs unless given."),
    ] = None,
    resume: Annotated[
        Literal["never", "auto"], typer.Option(help="auto: go on where a run in --out or checkpoint.address stopped.")
    ] = "never",
    working_dir: Annotated[
        Path | None,
        typer.Option(help="A folder to send along, such as one with modules of one's own; it holds the config."),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Follow the job to its end, and end with its exit code.")] = True,
) -> None:
    """Run an experiment as a job on a Ray cluster."""
    from raybcgd.submit import follow  # Ray takes a second to import
    from raybcgd.submit import submit as send

    job = send(
        config,
        address=address,
        settings=settings or (),
        out=out_folder,
        resume=resume == "auto",
        working_dir=working_dir,
    )
    logs = f"ray job logs {job.id} --address {job.address} --follow"
    _say(f"job: {job.id}\nfiles: {job.folder} on the node where the job runs (the cluster's head)")
    if not wait:
        _say(f"its log: {logs}")
        return
    try:
        code = follow(job, lambda text: out.print(text, end="", markup=False, highlight=False, soft_wrap=True))
    except KeyboardInterrupt:
        stop = f"ray job stop {job.id} --address {job.address}"
        raise Interrupted(f"the job goes on: {logs}; end it with {stop}") from None
    if code:
        raise typer.Exit(code)


def _say(text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
