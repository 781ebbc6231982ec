"""Run several methods on the same data, model and seed, and write a table and a plot."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from raybcgd.algorithms.contract import title
from raybcgd.algorithms.settings import ALGORITHMS
from raybcgd.compare.settings import CompareConfig, Variant
from raybcgd.config import Config
from raybcgd.config.files import vary
from raybcgd.data.dataset import Dataset
from raybcgd.data.sources import load
from raybcgd.engine.engines import engine_named
from raybcgd.engine.session import ignore
from raybcgd.errors import ConfigError
from raybcgd.experiment import RunResult, run
from raybcgd.problem import prepare
from raybcgd.record.comparison import run_labels, write_comparison
from raybcgd.record.summary import Standing, over_seeds, standing
from raybcgd.report.plots import accuracy_against_upload
from raybcgd.report.progress import Display, as_display
from raybcgd.report.tables import comparison_markdown, conditions
from raybcgd.server.budget import expected_rounds
from raybcgd.storage import make_folder, new_folder, slug, write_atomic


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison."""

    runs: dict[str, RunResult]
    """By label. With several seeds, a label ends in the seed."""
    standings: tuple[Standing, ...]
    target: float
    folder: Path
    """Contains a folder per run, `comparison.json`, `comparison.md` and `comparison.png`. With several seeds, the plot
    shows means and bands of one standard deviation."""


def compare(
    config: Config,
    *,
    algorithms: Iterable[str] | None = None,
    module: nn.Module | None = None,
    dataset: Dataset | None = None,
    out: str | Path | None = None,
    progress: bool | Display = True,
) -> Comparison:
    """Run the variants of `[compare]`, or those that `algorithms` selects. Write a table and a plot to `out`."""
    display, rounds = as_display(progress), 0
    configs = variant_configs(config, algorithms)
    with display.stage("reading the data"):
        dataset = dataset or load(config.data)
    for label, variant in configs.items():
        with _naming_variant(label), display.stage(f"checking {label}"):  # before the first one runs
            rounds += expected_rounds(prepare(variant, module, dataset)[0])
    folder = make_folder(Path(out) if out is not None else new_folder("compare"))
    seeds = (config.compare or CompareConfig()).seeds or (config.seed,)
    runs: dict[str, RunResult] = {}
    display.expect(len(configs) * len(seeds), rounds * len(seeds))
    with ExitStack() as stack:
        with display.stage("starting Ray") if config.engine == "ray" else nullcontext():
            stack.enter_context(engine_named(config.engine).running(config.hosts.address, ignore))
        for label, variant in configs.items():
            for name, seed in zip(run_labels(label, seeds), seeds, strict=True):
                runs[name] = run(
                    variant.model_copy(update={"seed": seed}),
                    module=module,
                    dataset=dataset,
                    out=folder / slug(name),
                    progress=display,
                    label=name,
                )
    return _report(runs, configs, seeds, dataset, folder)


def variant_configs(config: Config, algorithms: Iterable[str] | None = None) -> dict[str, Config]:
    """Return the config of each run by its label. `algorithms` selects variants by label or method.

    A method without a variant uses the settings of `[algorithm]` that apply to it.
    """
    comparison = config.compare or CompareConfig()
    variants = comparison.variants
    if algorithms is not None:
        variants = tuple(variant for name in algorithms for variant in _selected(name.strip(), variants))
    configs: dict[str, Config] = {}
    for variant in variants:
        method = variant.algorithm.get("name", type(config.algorithm))
        with _naming_variant(variant.label or ALGORITHMS.name_of(method)):
            varied = vary(config, variant)
        label = variant.label or title(type(varied.algorithm))
        if label in configs:
            raise ConfigError(f'compare.variants has "{label}" twice; give each variant its own label')
        metrics = varied.metrics.model_copy(update={"target": comparison.target})
        configs[label] = varied.model_copy(update={"metrics": metrics})
    if not configs:
        raise ConfigError("compare.variants is empty; add at least one, or name methods with --algorithms")
    return configs


def _selected(name: str, variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
    found = tuple(v for v in variants if name in (v.label or _default_label(v), v.algorithm.get("name")))
    return found or (Variant(algorithm={"name": name}),)


def _default_label(variant: Variant) -> str | None:
    method = variant.algorithm.get("name")
    return None if method is None else title(ALGORITHMS.resolve(method))


@contextmanager
def _naming_variant(label: str) -> Iterator[None]:
    """Add the variant's label to config errors."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f'compare.variants, "{label}": {error}') from None


def _report(
    runs: dict[str, RunResult], configs: dict[str, Config], seeds: tuple[int, ...], dataset: Dataset, folder: Path
) -> Comparison:
    first = next(iter(configs.values()))
    target, records, standings = first.metrics.target, {}, []
    for label, config in configs.items():
        results = [runs[name] for name in run_labels(label, seeds)]
        records[label] = [result.records for result in results]
        rows = [standing(label, _settings(config), result.records, result.summary, target) for result in results]
        standings.append(over_seeds(dict(zip(seeds, rows, strict=True))))
    write_comparison(folder, standings, target)
    write_atomic(folder / "comparison.md", comparison_markdown(standings, target))
    subject = conditions(first, next(iter(records.values()))[0][0], dataset.name, seeds)
    accuracy_against_upload(records, target, subject, folder / "comparison.png")
    return Comparison(runs, tuple(standings), target, folder)


def _settings(config: Config) -> str:
    return ", ".join(f"{name} = {value}" for name, value in config.algorithm.model_dump(exclude_none=True).items())
