"""Run several methods on the same data, model and seed, and write a table and a plot."""

import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from raybcgd.algorithms.api import Algorithm
from raybcgd.compare.variants import Method, naming_variant, seeds_of, variant_configs
from raybcgd.config import Config
from raybcgd.data.dataset import Dataset
from raybcgd.data.sources import load_once
from raybcgd.engine.engines import engine_named
from raybcgd.engine.session import ignore
from raybcgd.errors import ConfigError, DivergedError, RunError
from raybcgd.experiment import changed_settings, run
from raybcgd.problem import check_compare_target, prepare
from raybcgd.record.comparison import read_comparison, read_plan, run_labels, write_comparison, write_plan
from raybcgd.record.lock import in_use
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.summary import Standing, failed_standing, over_seeds, standing
from raybcgd.report.plots import accuracy_against_upload
from raybcgd.report.progress import Display, as_display
from raybcgd.report.tables import comparison_markdown, conditions
from raybcgd.results import RunResult
from raybcgd.server.budget import expected_rounds
from raybcgd.storage import RunFolder, check_holds, make_folder, new_folder, slug, write_atomic


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of a comparison."""

    runs: dict[str, RunResult]
    """The finished runs, by label. With several seeds, a label ends in the seed."""
    failures: dict[str, str]
    """Why the other runs failed, by label."""
    standings: tuple[Standing, ...]
    target: float
    folder: Path
    """Contains a folder per run, `planned.json`, `comparison.json`, `comparison.md` and `comparison.png`. With several
    seeds, the plot shows means and bands of one standard deviation."""
    diverged: tuple[str, ...] = ()
    """The labels of the failed runs that diverged. With the same settings, they would diverge again."""

    def __repr__(self) -> str:
        """Show the table of the comparison."""
        return comparison_markdown(self.standings, self.target, details=False)


def compare(
    config: Config,
    algorithms: Iterable[Method] | None = None,
    *,
    module: nn.Module | None = None,
    dataset: Dataset | tuple[Any, ...] | None = None,
    partition: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | Display = True,
) -> Comparison:
    """Run the variants of `[compare]`, or only `algorithms`: variant labels, or names, classes or instances of methods.

    `module`, `dataset` and `partition` are as in `run`. Write a table and a plot to `out`. A run that fails, for
    example because it diverges, does not stop the others. With `resume`, finished runs in `out` are read, and
    unfinished ones continue. A run that diverged starts again if its settings have changed.
    """
    display, rounds = as_display(progress), 0
    configs, prepared = variant_configs(config, algorithms), dict[str, Config]()
    with display.stage("reading the data"):
        given = {"module": module, **load_once(config.data, dataset, partition)}
    for label, variant in configs.items():
        with naming_variant(label), display.stage(f"checking {label}"):  # before the first one runs
            problem = prepare(variant, **given)[0]
            rounds, prepared[label] = rounds + expected_rounds(problem), problem.config
        check_compare_target(config, problem)
    folder = Path(out) if out is not None else new_folder("compare")
    seeds = seeds_of(config)
    if resume and folder.is_dir():
        check_holds(folder, "comparison")
        _check_kept(folder, [name for label in configs for name in run_labels(label, seeds)], several=len(seeds) > 1)
    else:
        make_folder(folder, "comparison")
    diverged = _diverged_before(folder)
    write_plan(folder, configs, seeds, diverged=diverged)
    runs: dict[str, RunResult] = {}
    failures: dict[str, str] = {}
    display.expect(len(configs) * len(seeds), rounds * len(seeds))
    with ExitStack() as stack:
        start_engine(config, display, stack)
        for label, variant in configs.items():
            for name, seed in zip(run_labels(label, seeds), seeds, strict=True):
                one = variant.model_copy(update={"seed": seed})
                if name in diverged and _changed(folder / slug(name), prepared[label]):
                    shutil.rmtree(folder / slug(name))
                    diverged.remove(name)
                    write_plan(folder, configs, seeds, failures, diverged)
                try:
                    runs[name] = _run(one, given, RunFolder(folder / slug(name)), display, name)
                except RunError as error:
                    failures[name] = str(error)
                    diverged = {*diverged, name} if isinstance(error, DivergedError) else diverged - {name}
                    write_plan(folder, configs, seeds, failures, diverged)
    if not runs:
        raise RunError(f"no run of the comparison finished: {'; '.join(f'{n}: {e}' for n, e in failures.items())}")
    result = _report(runs, failures, prepared, seeds, given["dataset"].name, folder)
    return replace(result, diverged=tuple(name for name in failures if name in diverged))


def start_engine(config: Config, display: Display, stack: ExitStack) -> None:
    """Start the engine of several runs. It stops when the stack is closed."""
    with display.stage("starting Ray") if config.engine == "ray" else nullcontext():
        stack.enter_context(engine_named(config.engine).running(config.hosts.address, ignore))


def _check_kept(folder: Path, names: Sequence[str], several: bool) -> None:
    """Refuse to replace the table and the plot of a comparison with ones that lack some of its finished runs."""
    found = read_comparison(folder)
    done = [] if found is None else [n for n in found.methods if RunFolder(folder / slug(n)).summary.exists()]
    if found is None or set(done) <= set(names):
        return
    methods = ", ".join(dict.fromkeys(found.methods.values()))
    seeds = dict.fromkeys(seed for row in found.runs for seed in row.get("seeds") or ())
    used = f"seeds {', '.join(map(str, seeds))}" if seeds else "one seed"
    if several and not seeds:  # the folders of its runs are named without a seed
        problem = "which cannot be extended to several seeds; choose another --out"
    else:
        problem = "which this one would replace; include the same methods and seeds, or choose another --out"
    raise ConfigError(f"{folder} has a comparison of {methods} with {used}, {problem}")


def _diverged_before(folder: Path) -> set[str]:
    """Return the labels of the runs that diverged when the comparison in a folder ran before."""
    plan = read_plan(folder)
    return set() if plan is None else {run.label for run in plan.runs if run.diverged}


def _changed(folder: Path, config: Config) -> bool:
    """Return whether the run in a folder has other settings than `config`, apart from its seed, and no result."""
    files = RunFolder(folder)
    if not files.config.exists() or files.summary.exists() or in_use(folder):
        return False
    return any(not line.startswith("seed = ") for line in changed_settings(files, config))


def _run(config: Config, given: dict[str, Any], folder: RunFolder, display: Display, label: str) -> RunResult:
    """Run one variant, or read or resume the run in its folder. `given` are the module, data set and partition."""
    try:
        return run(config, out=folder.path, resume=folder.config.exists(), progress=display, label=label, **given)
    except ConfigError as error:  # such as fewer rounds than are done
        raise ConfigError(f"{label}: {error}") from None


def _report(
    runs: dict[str, RunResult],
    failures: dict[str, str],
    configs: dict[str, Config],
    seeds: tuple[int, ...],
    dataset: str,
    folder: Path,
) -> Comparison:
    first = next(iter(configs.values()))
    target = first.metrics.target
    records: dict[str, list[Sequence[RoundRecord]]] = {}
    standings: list[Standing] = []
    for label, config in configs.items():
        rows = {}
        for name, seed in zip(run_labels(label, seeds), seeds, strict=True):
            if name in runs:
                records.setdefault(label, []).append(runs[name].records)
                rows[seed] = standing(label, _settings(config), runs[name].records, runs[name].summary, target)
        failed = tuple(failures[name] for name in run_labels(label, seeds) if name in failures)
        method = cast("Algorithm", config.algorithm)
        row = over_seeds(rows) if rows else failed_standing(label, method.name, _settings(config))
        several = seeds if len(seeds) > 1 else ()
        standings.append(row._replace(seeds=several, failures=failed, pooled=method.pooled))
    write_comparison(folder, standings, target)
    write_atomic(folder / "comparison.md", comparison_markdown(standings, target))
    references = [line.label for line in standings if line.pooled]
    shown = next((label for label in records if label not in references), next(iter(records)))
    subject = conditions(first, records[shown][0][0], dataset, seeds)
    lost = [line.label for line in standings if not line.rounds]
    accuracy_against_upload(records, target, subject, folder / "comparison.png", references, lost)
    return Comparison(runs, failures, tuple(standings), target, folder)


def _settings(config: Config) -> str:
    return ", ".join(f"{name} = {value}" for name, value in config.algorithm.model_dump(exclude_none=True).items())
