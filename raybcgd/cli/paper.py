"""`raybcgd paper`: the experiments of the papers, and our results next to the published ones."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from raybcgd.cli.shared import Log, Set, display, err, exits_cleanly, out, print_line
from raybcgd.config import load_config
from raybcgd.errors import ConfigError
from raybcgd.paper.catalogue import config_folder, select
from raybcgd.paper.published import Experiment
from raybcgd.paper.results import Comparison, choices, compare_rows, latex, markdown, numbers, to_json
from raybcgd.paper.runs import run_variants
from raybcgd.storage import write_atomic


@exits_cleanly
def paper(
    name: Annotated[str | None, typer.Argument(metavar="[PAPER]", help="fedbcgd, fedpvr or block-cyclic.")] = None,
    experiment: Annotated[
        str | None, typer.Argument(metavar="[EXPERIMENT]", help="A table or figure to run, such as table2.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only this model, such as lenet5.")] = None,
    data: Annotated[str | None, typer.Option(help="Only this data set, such as cifar10.")] = None,
    rho: Annotated[float | None, typer.Option("--rho", "--alpha", help="Only this Dirichlet parameter.")] = None,
    methods: Annotated[str | None, typer.Option(help="Comma-separated methods or labels to run. Default: all.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run all cases of EXPERIMENT that match.")] = False,
    settings: Set = None,
    out_folder: Annotated[
        Path, typer.Option("--out", help="Folder for the tables, and for the cached runs in runs/.")
    ] = Path("runs/papers"),
    configs: Annotated[Path | None, typer.Option(help="Folder of the configs. Default: jobs/configs.")] = None,
    log: Log = "auto",
) -> None:
    """List the experiments of the papers with the published numbers, or run one and print ours next to them.

    Finished runs are cached by the hash of their config. Unfinished ones resume.
    """
    found = select(name, experiment, model, data, rho)
    if experiment is None:
        out.print(_list(found))
        return
    if len(found) > 1 and not everything:
        cases = ", ".join(f"--model {one.model} --data {one.data}" + _rho(one) for one in found)
        raise ConfigError(f"{experiment} has {len(found)} cases: choose one with {cases}; or run them all with --all")
    chosen = None if methods is None else methods.split(",")
    for one in found:
        _run(one, config_folder(configs), chosen, settings or [], out_folder, log)


def _rho(experiment: Experiment) -> str:
    return "" if experiment.rho is None else f" --rho {experiment.rho:g}"


def _list(experiments: list[Experiment]) -> Table:
    table = Table(title="The papers' experiments and published numbers", title_justify="left", show_lines=True)
    for heading in ("paper", "experiment", "model", "data", "rho", "content"):
        table.add_column(heading)
    table.add_column("published", ratio=1)
    for one in experiments:
        rows = "; ".join(f"{row.label} {numbers(row)}" for row in one.rows)
        rho = "" if one.rho is None else f"{one.rho:g}"
        table.add_row(one.paper, one.name, one.model, one.data, rho, one.about, rows)
    return table


def _run(
    experiment: Experiment, folder: Path, methods: list[str] | None, settings: list[str], results: Path, log: Log
) -> None:
    config = load_config(folder / experiment.config, settings)
    target = config.with_compare_target().metrics.target
    runs = run_variants(config, results / "runs", methods, display(log), choices(experiment))
    failures = tuple(failure for one in runs.values() for failure in one.failures)
    lines = compare_rows(experiment, target, runs)
    result = Comparison(experiment, target, tuple(settings), lines, failures)
    file = results / Path(experiment.config).with_suffix("")
    file.parent.mkdir(parents=True, exist_ok=True)
    for suffix, content in ((".md", markdown(result)), (".tex", latex(result)), (".json", to_json(result))):
        write_atomic(file.with_name(file.name + suffix), content)
    print_line(f"{markdown(result)}\n{latex(result)}")
    for failure in failures:
        err.print(f"failed: {failure}", markup=False, highlight=False, soft_wrap=True)
    print_line(f"tables: {file}.md, .tex, .json")
