"""`raybcgd train`, `resume`, `compare` and `sweep`."""

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from raybcgd.algorithms.contract import title
from raybcgd.algorithms.settings import ALGORITHMS
from raybcgd.cli.shared import (
    ConfigFile,
    Interrupted,
    Log,
    Out,
    Resume,
    Set,
    display,
    exits_cleanly,
    out,
    print_line,
)
from raybcgd.compare.comparison import Comparison
from raybcgd.compare.comparison import compare as run_comparison
from raybcgd.compare.variants import check_overrides, one_variant, replaced_by_variants, variant_configs
from raybcgd.config import Config, load_config, load_run_config, resume_command, run_tables
from raybcgd.errors import ConfigError, RunError
from raybcgd.experiment import check_objects, run
from raybcgd.interrupts import ended
from raybcgd.record.rounds import RoundLog
from raybcgd.record.summary import Ranking
from raybcgd.report.bars import counted
from raybcgd.report.sweeps import edge_hints
from raybcgd.report.tables import comparison_table, run_table
from raybcgd.server.budget import ended_by, limits_to_raise
from raybcgd.storage import RunFolder, in_job, new_folder


@exits_cleanly
def train(
    config: ConfigFile,
    settings: Set = None,
    out_folder: Out = None,
    resume: Resume = "never",
    log: Log = "auto",
    on_config_error: Annotated[
        Literal["exit", "stop-job"],
        typer.Option(hidden=True, help="stop-job: stop the Ray job, because KubeRay would retry a failed one."),
    ] = "exit",
) -> None:
    """Run an experiment."""
    try:
        _train(config, settings or (), out_folder, resume, log)
    except ConfigError:
        # A config with which rounds have finished is not wrong: a node or the storage fails, and a retry may help.
        started = out_folder is not None and RunFolder(out_folder).rounds.exists()
        if on_config_error == "stop-job" and not started:
            from raybcgd.submit import stop_own_job  # importing Ray takes a second

            stop_own_job()
        raise


def _train(
    config: Path,
    settings: Sequence[str],
    out_folder: Path | None,
    resume: Literal["never", "auto"],
    log: Literal["auto", "json"],
) -> None:
    experiment = load_config(config, settings)
    elsewhere = experiment.checkpoint.address is not None
    if resume == "auto" and out_folder is None and not elsewhere:
        raise ConfigError("--resume auto needs a run to resume; add --out, or set checkpoint.address")
    folder = RunFolder(out_folder or new_folder(ALGORITHMS.name_of(type(experiment.algorithm))))
    _run(experiment, folder, resume == "auto" and (elsewhere or folder.config.exists()), log)


@exits_cleanly
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as rounds=200. Repeatable."),
    ] = None,
    log: Log = "auto",
    trust: Annotated[
        bool, typer.Option("--trust", help="Allow the run folder's config to name custom code or a Ray cluster.")
    ] = False,
) -> None:
    """Resume a run from its last checkpoint. `--set` can change only settings that do not affect the weights.

    These are rounds, engine, and the tables budget, hosts, checkpoint, evaluation, analysis, metrics and track.
    """
    run_folder = RunFolder(folder)
    check_objects(run_folder)
    _run(load_run_config(run_folder, settings or (), trust), run_folder, True, log)


def _run(config: Config, folder: RunFolder, resume: bool, log: Literal["auto", "json"]) -> None:
    if in_job():  # the user reads the log on another machine
        print_line(f"files: {socket.gethostname()}:{folder.path.absolute()}")
    before = RoundLog(folder.rounds).content().count(b"\n") if resume and folder.summary.exists() else None
    try:
        result = run(config, out=folder.path, resume=resume, progress=display(log))
    except KeyboardInterrupt as end:
        what, code = ended(end)
        done = RoundLog(folder.rounds).content().count(b"\n")
        if not done:
            raise Interrupted(f"{what} before the end of the first round", code) from None
        here = any((folder.path / "checkpoints").glob("round-*/manifest.json"))
        saved = here or config.checkpoint.address is not None
        how = "continue from the last checkpoint" if saved else "there is no checkpoint yet; start again at round 1"
        command = resume_command(run_tables(folder), folder)
        raise Interrupted(f"{what} after {counted(done, 'round')}; {how} with `{command}`", code) from None
    summary = result.summary
    if before == len(result.records):
        more = limits_to_raise(config, result.records)
        print_line(
            f"{folder.path} had already finished after {counted(before, 'round')}; to continue it, use --set to raise "
            f"{more}"
        )
        summary = {**summary, "ended_by": ended_by(config, result.records)}  # the limits may have changed
    out.print(run_table(title(type(config.algorithm)), summary, result.folder))


def _unfinished(end: KeyboardInterrupt, folder: Path, noun: str) -> Interrupted:
    """Return how to continue a comparison or a sweep."""
    what, code = ended(end)
    done = counted(len(list(folder.glob("*/summary.json"))), f"finished {noun}")
    return Interrupted(f"{what} after {done}; repeat the command with --out {folder} --resume auto to continue", code)


@exits_cleanly
def compare(
    config: ConfigFile,
    algorithms: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated methods or variant labels. A method selects every variant that uses it. Default: all "
            "compare.variants of the config; without any, fedavg, fedavgm, fedbcgd and fedbcgd+."
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="SEED,…", help="Run every method with these seeds: integers, such as 0,1,2.")
    ] = None,
    settings: Set = None,
    out_folder: Out = None,
    resume: Annotated[
        Literal["never", "auto"],
        typer.Option(help="auto: keep the finished runs in --out, and continue the unfinished ones."),
    ] = "never",
    log: Log = "auto",
) -> None:
    """Run several methods on the same data and seeds. Write a table and a plot of accuracy against upload.

    A run that fails does not stop the others. If any run failed, the command exits with code 1 after the last one.
    """
    given = [] if seeds is None else [f"compare.seeds={json.dumps(seeds.split(','))}"]  # the config checks them
    experiment = load_config(config, [*(settings or ()), *given])
    names = algorithms.split(",") if algorithms is not None else None
    check_overrides(experiment, settings or (), variant_configs(experiment, names, "--algorithms"))
    folder = out_folder or new_folder("compare")
    try:
        result = run_comparison(
            experiment, algorithms=names, out=folder, resume=resume == "auto", progress=display(log)
        )
    except KeyboardInterrupt as end:
        raise _unfinished(end, folder, "run") from None
    out.print(comparison_table(result.standings, result.target, out.width))
    for label, reason in result.failures.items():
        print_line(f"{label} failed: {reason}")
    print_line(f"plot and tables: {result.folder}/comparison.png, .md, .json")
    if result.failures:
        raise RunError(
            f"{len(result.failures)} of {len(result.failures) + len(result.runs)} runs failed "
            f"({'; '.join(result.failures)}); {_after_failures(result, folder)}"
        )


def _after_failures(result: Comparison, folder: Path) -> str:
    """Return how to repeat the failed runs of a comparison."""
    repeat = f"repeat the command with --out {folder} --resume auto"
    if not result.diverged:
        return f"{repeat} to run only these"
    return (
        f"change the settings of {'; '.join(result.diverged)}, such as lr, because a repeat would diverge again; then "
        f"{repeat}, which keeps the finished runs"
    )


@exits_cleanly
def sweep(
    config: ConfigFile,
    grid: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE,…", help="Values to try, such as algorithm.lr=0.01,0.03. Repeatable."),
    ],
    variant: Annotated[
        str | None,
        typer.Option(help="Label or method of the compare.variants entry to sweep. Default: the config itself."),
    ] = None,
    metric: Annotated[
        Ranking | None,
        typer.Option(
            help="How to rank the runs: by highest accuracy, lowest loss, or smallest upload to the target accuracy. "
            "Default: last_tenth_accuracy, or last_tenth_loss for regression."
        ),
    ] = None,
    settings: Set = None,
    out_folder: Out = None,
    resume: Annotated[
        Literal["never", "auto"],
        typer.Option(help="auto: keep the finished points in --out, and continue the unfinished ones."),
    ] = "never",
) -> None:
    """Run every combination of the values in the grid, in parallel if the cluster has room. Write the best config.

    The runs are evaluated on validation data: data.validation_share of the training samples, by default a tenth.
    """
    shown = display("auto")
    with shown.stage("loading Ray Tune"):
        from raybcgd.sweep import parse_grid, sweep_table
        from raybcgd.sweep import sweep as run_sweep

    experiment = load_config(config, settings or ())
    values = parse_grid(grid)
    if variant is not None:
        found = one_variant(experiment, variant, "--variant")
        check_overrides(experiment, settings or (), found)
        (experiment,) = found.values()
    folder = out_folder or new_folder("sweep")
    try:
        result = run_sweep(experiment, values, metric=metric, out=folder, resume=resume == "auto", progress=shown)
    except KeyboardInterrupt as end:
        raise _unfinished(end, folder, "point") from None
    out.print(sweep_table(result))
    print_line(f"best: {result.best.label}; config: {result.folder}/best.toml")
    for line in edge_hints(result.points, result.best):
        print_line(line)
    if replaced := [key for key in values if replaced_by_variants(experiment, key)]:
        print_line(
            f"note: compare.variants sets {' and '.join(replaced)}, so a comparison of {result.folder}/best.toml does "
            "not use the best value; use --variant to sweep a variant"
        )
    print_line(f"test data was not used; for the test accuracy, run `raybcgd train {result.folder}/best.toml`")
