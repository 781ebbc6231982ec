"""`raybcgd submit`."""

from pathlib import Path
from typing import Annotated

import typer

from raybcgd.cli.shared import ConfigFile, Interrupted, Resume, Set, exits_cleanly, print_line


@exits_cleanly
def submit(
    config: ConfigFile,
    address: Annotated[
        str | None,
        typer.Option(help="Address of the cluster's dashboard, such as http://127.0.0.1:8265. Default: RAY_ADDRESS."),
    ] = None,
    settings: Set = None,
    out_folder: Annotated[
        str | None,
        typer.Option(
            "--out",
            help="Folder for the results on the cluster, relative to ~/raybcgd-runs. Default: a new one.",
        ),
    ] = None,
    resume: Resume = "never",
    working_dir: Annotated[
        Path | None,
        typer.Option(help="Folder to send with the job, for example with custom modules. Must contain the config."),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Follow the job's log and exit with the job's exit code.")] = True,
) -> None:
    """Run an experiment as a job on a Ray cluster."""
    from raybcgd.submit import follow  # importing Ray takes a second
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
    print_line(f"job: {job.id}\nfiles: {job.folder} on the node that runs the job's driver (default: the head node)")
    if not wait:
        print_line(f"log: {logs}")
        return
    try:
        code = follow(job, lambda text: print_line(text, end=""))
    except KeyboardInterrupt:
        stop = f"ray job stop {job.id} --address {job.address}"
        raise Interrupted(f"the job keeps running; follow it with `{logs}`, or stop it with `{stop}`") from None
    if code:
        raise typer.Exit(code)
