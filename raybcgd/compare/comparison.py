"""Several methods on the same data, model and seed: run one after another, put in a table, and drawn."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from raybcgd.algorithms import Algorithm
from raybcgd.compare.settings import CompareConfig, Variant
from raybcgd.config import Config
from raybcgd.config.files import vary
from raybcgd.data.dataset import Dataset
from raybcgd.data.sources import load
from raybcgd.errors import ConfigError
from raybcgd.experiment import RunResult, run, write_whole
from raybcgd.problem import prepare
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.standing import Standing, comparison_markdown, standing
from raybcgd.report.plots import accuracy_against_upload
from raybcgd.report.progress import Display
from raybcgd.storage import new_folder


@dataclass(frozen=True)
class Comparison:
    """What a comparison leaves behind."""

    runs: dict[str, RunResult]
    """By label."""
    standings: tuple[Standing, ...]
    target: float
    folder: Path
    """One folder a run, `comparison.json`, `comparison.md` and `comparison.png`."""


def compare(
    config: Config,
    *,
    algorithms: Iterable[str] | None = None,
    module: nn.Module | None = None,
    dataset: Dataset | None = None,
    out: str | Path | None = None,
    display: Display | None = None,
) -> Comparison:
    """Run the variants of `[compare]`, or those of the `algorithms` named; write a table and a plot to `out`."""
    display = display or Display()
    target = (config.compare or CompareConfig()).target
    plan = variant_configs(config, algorithms)
    dataset = dataset or load(config.data)
    for label, variant in plan.items():
        with _of(label):
            prepare(variant, module, dataset)  # what is wrong with the last is said before the first has run
    folder = open_folder(Path(out) if out is not None else new_folder("compare"))
    runs: dict[str, RunResult] = {}
    with ExitStack() as stack:
        if config.engine == "ray":
            from raybcgd.engine.ray.coordinator import cluster  # Ray takes a second to import

            with display.stage("Starting Ray"):
                stack.enter_context(cluster(config.hosts.address))
        for label, variant in plan.items():
            with display.run(label, variant.rounds) as watcher:
                runs[label] = run(
                    variant,
                    module=module,
                    dataset=dataset,
                    out=folder / slug(label),
                    observe=watcher.observe,
                    announce=watcher.announce,
                )
    return _report(runs, plan, target, dataset, folder)


def variant_configs(config: Config, algorithms: Iterable[str] | None = None) -> dict[str, Config]:
    """The config of each run by its label. `algorithms` chooses variants by label or by method.

    An algorithm that is no variant runs with the settings of `[algorithm]` that it has.
    """
    variants = (config.compare or CompareConfig()).variants
    if algorithms is not None:
        variants = tuple(variant for name in algorithms for variant in _chosen(name.strip(), variants))
    plan: dict[str, Config] = {}
    for variant in variants:
        name = variant.label or str(variant.algorithm.get("name", config.algorithm.name))
        with _of(name):
            one = _counting(vary(config, variant), config)
        label = variant.label or title(type(one.algorithm))
        if label in plan:
            raise ConfigError(f'compare.variants has "{label}" twice; give each a label of its own')
        plan[label] = one
    if not plan:
        raise ConfigError("compare.variants is empty; name at least one method there or with --algorithms")
    return plan


def _counting(variant: Config, config: Config) -> Config:
    """The same, with the comparison's target as that of its metrics."""
    target = (config.compare or CompareConfig()).target
    return variant.model_copy(update={"metrics": variant.metrics.model_copy(update={"target": target})})


def _chosen(name: str, variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
    there = tuple(v for v in variants if name in (v.label, v.algorithm.get("name")))
    return there or (Variant(algorithm={"name": name}),)


def title(kind: type[Algorithm]) -> str:
    """A method's name as its paper writes it: the docstring's first words."""
    first, bracket, _ = (kind.__doc__ or "").strip().split("\n")[0].partition(" (")
    return first if bracket else kind.name


@contextmanager
def _of(label: str) -> Iterator[None]:
    """Say which variant an error is about."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f'compare, variant "{label}": {error}') from None


def slug(label: str) -> str:
    """The name of a run's folder in its comparison's."""
    return re.sub(r"[^a-z0-9_.]+", "-", label.lower().replace("+", "_plus")).strip("-.") or "run"


def open_folder(folder: Path) -> Path:
    """Make a folder for new files, unless it has any."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder} ({error.strerror}); choose another --out") from None
    return folder


def _report(
    runs: dict[str, RunResult], plan: dict[str, Config], target: float, dataset: Dataset, folder: Path
) -> Comparison:
    standings = tuple(
        standing(label, _settings(plan[label]), result.records, result.summary, target)
        for label, result in runs.items()
    )
    table = {"target": target, "runs": [line._asdict() for line in standings]}
    write_whole(folder / "comparison.json", json.dumps(table, indent=2) + "\n")
    write_whole(folder / "comparison.md", comparison_markdown(standings, target))
    records = {label: result.records for label, result in runs.items()}
    label, first = next(iter(records.items()))
    accuracy_against_upload(records, target, _subject(plan[label], first[0], dataset), folder / "comparison.png")
    return Comparison(runs, standings, target, folder)


def _settings(config: Config) -> str:
    return ", ".join(f"{name} = {value}" for name, value in config.algorithm.model_dump(exclude_none=True).items())


def _subject(config: Config, first: RoundRecord, dataset: Dataset) -> str:
    """What was compared, for the plot."""
    sampled = len(first.participants) + len(first.dropped)
    dealt = config.data.partition
    how = f"Dirichlet({dealt.rho:g})" if dealt.kind.startswith("dirichlet") else dealt.kind
    return (
        f"{config.model.name} on {dataset.name}, {dealt.clients} clients, {how}, {sampled} clients a round, "
        f"seed {config.seed}"
    )
