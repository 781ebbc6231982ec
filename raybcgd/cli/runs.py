"""`raybcgd train`, `resume`, `compare` and `sweep`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from raybcgd.algorithms.contract import title
from raybcgd.cli.shared import ConfigFile, Interrupted, Log, Out, Set, display, ends_clearly, out, say_where
from raybcgd.compare.comparison import compare as run_comparison
from raybcgd.compare.comparison import variant_configs
from raybcgd.config import Config, load_config
from raybcgd.errors import ConfigError
from raybcgd.experiment import run
from raybcgd.record.standing import comparison_table, run_table
from raybcgd.storage import RunFolder, new_folder


@ends_clearly
def train(
    config: ConfigFile,
    settings: Set = None,
    out_folder: Out = None,
    resume: Annotated[
        Literal["never", "auto"], typer.Option(help="auto: go on where a run in --out or checkpoint.address stopped.")
    ] = "never",
    log: Log = "auto",
) -> None:
    """Run an experiment."""
    experiment = load_config(config, settings or ())
    elsewhere = experiment.checkpoint.address is not None
    if resume == "auto" and out_folder is None and not elsewhere:
        raise ConfigError("--resume auto needs the run's folder; give --out, or set checkpoint.address")
    folder = out_folder or new_folder(experiment.algorithm.name)
    _run(experiment, folder, resume=resume == "auto" and (elsewhere or RunFolder(folder).config.exists()), shown=log)


@ends_clearly
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.")],
    settings: Set = None,
    log: Log = "auto",
) -> None:
    """Go on with a run from its last checkpoint, possibly with more rounds or on other hosts."""
    if not RunFolder(folder).config.exists():
        raise ConfigError(
            f"{folder} holds no run (no config.toml); give the folder of one, or start with raybcgd train"
        )
    _run(load_config(RunFolder(folder).config, settings or ()), folder, resume=True, shown=log)


def _run(config: Config, folder: Path, resume: bool, shown: Literal["auto", "json"]) -> None:
    say_where(folder)
    try:
        with display(shown).run(title(type(config.algorithm)), config.rounds) as watcher:
            result = run(config, out=folder, resume=resume, observe=watcher.observe, announce=watcher.announce)
    except KeyboardInterrupt:
        raise Interrupted(_where_it_stopped(folder)) from None
    out.print(run_table(result.summary, result.folder))


def _where_it_stopped(folder: Path) -> str:
    done = RunFolder(folder).rounds.content().count(b"\n")
    if not done:
        return "interrupted before the first round was done"
    return f"interrupted after {done} rounds; go on from the last checkpoint with `raybcgd resume {folder}`"


@ends_clearly
def compare(
    config: ConfigFile,
    algorithms: Annotated[
        str | None,
        typer.Option(help="Methods to run, separated by commas; else those of the config."),
    ] = None,
    settings: Set = None,
    out_folder: Out = None,
    log: Log = "auto",
) -> None:
    """Run several methods on the same data and seed; write a table and a plot of accuracy against uploaded floats."""
    experiment = load_config(config, settings or ())
    names = algorithms.split(",") if algorithms is not None else None
    result = run_comparison(experiment, algorithms=names, out=out_folder, display=display(log))
    out.print(comparison_table(result.standings, result.target))
    out.print(f"plot and tables: {result.folder}/comparison.png, .md, .json", highlight=False, soft_wrap=True)


@ends_clearly
def sweep(
    config: ConfigFile,
    grid: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE,…", help="Values to try, such as algorithm.lr=0.01,0.03. May be repeated."),
    ],
    variant: Annotated[
        str | None,
        typer.Option(help="The compared variant to vary, by label or method; else the config's method."),
    ] = None,
    metric: Annotated[
        Literal["last_tenth_accuracy", "best_accuracy", "final_accuracy", "upload_d_to_target"],
        typer.Option(help="By what the best is chosen; of uploads, to the comparison's target, the smallest is."),
    ] = "last_tenth_accuracy",
    settings: Set = None,
    out_folder: Out = None,
) -> None:
    """Run every combination of some settings, as many at once as there is room for; write the best config."""
    from raybcgd.sweep import parse_grid, sweep_table  # Ray Tune takes seconds to import
    from raybcgd.sweep import sweep as run_sweep

    experiment = load_config(config, settings or ())
    values = parse_grid(grid)
    if variant is not None:
        (chosen,) = variant_configs(experiment, [variant]).values()
        experiment = chosen.model_copy(update={"compare": experiment.compare})
    result = run_sweep(experiment, values, metric=metric, out=out_folder, observe=_say_point)
    out.print(sweep_table(result))
    out.print(f"best: {result.best.label}; its config: {result.folder}/best.toml", highlight=False, soft_wrap=True)


def _say_point(point: Any) -> None:
    accuracy = point.results.get("last_tenth_accuracy")
    came_to = point.error or ("no accuracy" if accuracy is None else f"accuracy {accuracy:.1%}")
    out.print(f"{point.label}: {came_to}", markup=False, highlight=False, soft_wrap=True)
