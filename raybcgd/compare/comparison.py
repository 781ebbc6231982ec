"""Run several methods on the same data, model and seed, and write a table and a plot."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from raybcgd.compare.settings import CompareConfig
from raybcgd.compare.variants import Method, naming_variant
from raybcgd.compare.variants import variant_configs as variant_configs
from raybcgd.config import Config
from raybcgd.data.dataset import Dataset
from raybcgd.data.from_python import as_dataset
from raybcgd.data.sources import load
from raybcgd.engine.engines import engine_named
from raybcgd.engine.session import ignore
from raybcgd.errors import RunError
from raybcgd.experiment import run
from raybcgd.problem import prepare
from raybcgd.record.comparison import run_labels, write_comparison
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.summary import Standing, failed_standing, over_seeds, standing
from raybcgd.report.plots import accuracy_against_upload
from raybcgd.report.progress import Display, as_display
from raybcgd.report.tables import comparison_markdown, conditions
from raybcgd.results import RunResult, finished_run
from raybcgd.server.budget import expected_rounds
from raybcgd.storage import RunFolder, make_folder, new_folder, slug, write_atomic


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
    """Contains a folder per run, `comparison.json`, `comparison.md` and `comparison.png`. With several seeds, the plot
    shows means and bands of one standard deviation."""

    def __repr__(self) -> str:
        """Show the table of the comparison."""
        return comparison_markdown(self.standings, self.target, details=False)


def compare(
    config: Config,
    *,
    algorithms: Iterable[Method] | None = None,
    module: nn.Module | None = None,
    dataset: Dataset | tuple[Any, ...] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | Display = True,
) -> Comparison:
    """Run the variants of `[compare]`, or the `algorithms`: labels, names, classes or instances of methods.

    Write a table and a plot to `out`. A run that fails, for example because it diverges, does not stop the others. With
    `resume`, finished runs in `out` are read, and unfinished ones continue.
    """
    display, rounds = as_display(progress), 0
    configs = variant_configs(config, algorithms)
    with display.stage("reading the data"):
        dataset = load(config.data) if dataset is None else as_dataset(dataset)
    for label, variant in configs.items():
        with naming_variant(label), display.stage(f"checking {label}"):  # before the first one runs
            rounds += expected_rounds(prepare(variant, module, dataset)[0])
    folder = Path(out) if out is not None else new_folder("compare")
    if not (resume and folder.is_dir()):
        make_folder(folder)
    seeds = (config.compare or CompareConfig()).seeds or (config.seed,)
    runs: dict[str, RunResult] = {}
    failures: dict[str, str] = {}
    display.expect(len(configs) * len(seeds), rounds * len(seeds))
    with ExitStack() as stack:
        with display.stage("starting Ray") if config.engine == "ray" else nullcontext():
            stack.enter_context(engine_named(config.engine).running(config.hosts.address, ignore))
        for label, variant in configs.items():
            for name, seed in zip(run_labels(label, seeds), seeds, strict=True):
                one = variant.model_copy(update={"seed": seed})
                try:
                    runs[name] = _run(one, module, dataset, RunFolder(folder / slug(name)), display, name)
                except RunError as error:
                    failures[name] = str(error)
    if not runs:
        raise RunError(f"no run of the comparison finished: {'; '.join(f'{n}: {e}' for n, e in failures.items())}")
    return _report(runs, failures, configs, seeds, dataset, folder)


def _run(
    config: Config, module: nn.Module | None, dataset: Dataset, folder: RunFolder, display: Display, label: str
) -> RunResult:
    """Run one variant, or read or resume the run in its folder."""
    if folder.summary.exists() and folder.config.read_text() == config.to_toml():
        return finished_run(folder, prepare(config, module, dataset)[0])
    return run(
        config,
        module=module,
        dataset=dataset,
        out=folder.path,
        resume=folder.config.exists(),
        progress=display,
        label=label,
    )


def _report(
    runs: dict[str, RunResult],
    failures: dict[str, str],
    configs: dict[str, Config],
    seeds: tuple[int, ...],
    dataset: Dataset,
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
        row = over_seeds(rows) if rows else failed_standing(label, _settings(config))
        standings.append(row._replace(seeds=seeds if len(seeds) > 1 else (), failures=failed))
    write_comparison(folder, standings, target)
    write_atomic(folder / "comparison.md", comparison_markdown(standings, target))
    subject = conditions(first, next(iter(records.values()))[0][0], dataset.name, seeds)
    accuracy_against_upload(records, target, subject, folder / "comparison.png")
    return Comparison(runs, failures, tuple(standings), target, folder)


def _settings(config: Config) -> str:
    return ", ".join(f"{name} = {value}" for name, value in config.algorithm.model_dump(exclude_none=True).items())
