"""`raybcgd submit` and `raybcgd jobs`."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from raybcgd.cli.shared import ConfigFile, Interrupted, Resume, Set, exits_cleanly, out, print_line
from raybcgd.report.job_log import log_bar

if TYPE_CHECKING:
    from raybcgd.submit import SubmittedJob

Address = Annotated[
    str | None,
    typer.Option(help="Address of the cluster's dashboard, such as http://127.0.0.1:8265. Default: RAY_ADDRESS."),
]


@exits_cleanly
def submit(
    config: ConfigFile,
    address: Address = None,
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
    command: Annotated[
        Literal["train", "compare", "sweep"],
        typer.Option(help="What to run. Pass its options after --, such as -- --grid algorithm.lr=0.03,0.1."),
    ] = "train",
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[-- OPTIONS]")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set an environment variable. Repeatable.")
    ] = None,
    runtime_env: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML file for Ray's runtime environment, such as pip: [mlflow]."),
    ] = None,
    progress: Annotated[
        bool, typer.Option("--follow", help="Show a progress bar instead of a line per round.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Follow the job's log and exit with the job's exit code.")] = True,
) -> None:
    """Run an experiment as a job on a Ray cluster."""
    from raybcgd.submit import submit as send  # importing Ray takes a second

    job = send(
        config,
        address=address,
        settings=settings or (),
        out=out_folder,
        resume=resume == "auto",
        working_dir=working_dir,
        command=command,
        arguments=arguments or (),
        runtime_env=runtime_env,
        env=env or (),
    )
    print_line(f"job: {job.id}\nfiles: {job.folder} on the node that runs the job's driver (default: the head node)")
    if wait:
        _follow(job, progress)
    else:
        print_line(f"log: {_log_command(job)}")


def _log_command(job: "SubmittedJob") -> str:
    return f"ray job logs {job.id} --address {job.address} --follow"


def _follow(job: "SubmittedJob", progress: bool) -> None:
    """Print the job's log, or show its progress, and exit with its exit code."""
    from raybcgd.submit import follow  # importing Ray takes a second

    try:
        with log_bar(out) if progress else nullcontext() as bar:
            code = follow(job, bar.write if bar else _print_chunk)
    except KeyboardInterrupt:
        stop = f"ray job stop {job.id} --address {job.address}"
        how = f"follow it with `{_log_command(job)}`, or stop it with `{stop}`"
        raise Interrupted(f"the job keeps running; {how}") from None
    if code:
        raise typer.Exit(code)


def _print_chunk(text: str) -> None:
    out.print(text, end="", markup=False, highlight=False, soft_wrap=True)


@exits_cleanly
def jobs(address: Address = None) -> None:
    """List the jobs on a Ray cluster with their progress."""
    from raybcgd.submit import list_jobs  # importing Ray takes a second

    table = Table()
    for heading in ("job", "status", "round", "accuracy", "s/round", "minutes", "files"):
        table.add_column(heading, overflow="fold")
    for job in list_jobs(address):
        last = job.last
        progress = ("", "", "") if last is None else (f"{last.round}/{last.rounds}", "", f"{last.seconds:.2f}")
        if last is not None and last.accuracy is not None:
            progress = (progress[0], f"{last.accuracy:.1f}%", progress[2])
        table.add_row(job.id, job.status, *progress, f"{job.seconds / 60:.1f}", job.folder)
    out.print(table)
