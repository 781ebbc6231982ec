"""Run the experiments of a paper. Finished runs are cached by the hash of their config; unfinished ones resume."""

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from raybcgd.compare.comparison import variant_configs
from raybcgd.compare.settings import CompareConfig
from raybcgd.config import Config
from raybcgd.data.dataset import Dataset
from raybcgd.data.sources import load
from raybcgd.engine.engines import engine_named
from raybcgd.engine.session import ignore
from raybcgd.errors import RunError
from raybcgd.experiment import run
from raybcgd.record.comparison import run_labels
from raybcgd.record.rounds import RoundLog, RoundRecord
from raybcgd.report.progress import Display
from raybcgd.storage import RunFolder

_IRRELEVANT = {"version", "engine", "hosts", "checkpoint", "metrics", "compare"}
"""Tables that change neither the weights nor the records of a run."""


class Finished(NamedTuple):
    """A finished run."""

    seed: int
    key: str
    """The hash of its config, which is also its folder in the cache."""
    records: tuple[RoundRecord, ...]
    summary: dict[str, Any]


class Runs(NamedTuple):
    """The runs of one variant, by seed."""

    finished: tuple[Finished, ...]
    failures: tuple[str, ...]


def cache_key(config: Config) -> str:
    """Return the hash of all settings that affect the results. The place of the data files is not one of them."""
    settings = config.model_dump(mode="json", exclude_none=True, exclude=_IRRELEVANT)
    for name in ("root", "download"):
        settings["data"].pop(name, None)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def cached(config: Config, folder: Path) -> Finished | None:
    """Return the finished run of a config in a cache folder, or None."""
    key = cache_key(config)
    files = RunFolder(folder / key)
    if not files.summary.exists():
        return None
    return Finished(config.seed, key, tuple(RoundLog(files.rounds)), json.loads(files.summary.read_text()))


def run_variants(config: Config, folder: Path, methods: Iterable[str] | None, display: Display) -> dict[str, Runs]:
    """Run the variants of a config with all its seeds, or those that `methods` selects. Return the runs by label.

    A run that fails, for example because it diverges, does not stop the others.
    """
    seeds = (config.compare or CompareConfig()).seeds or (config.seed,)

    @cache
    def dataset() -> Dataset:
        return load(config.data)

    results: dict[str, Runs] = {}
    with ExitStack() as stack:

        @cache
        def start_engine() -> None:
            with display.stage("starting Ray") if config.engine == "ray" else nullcontext():
                stack.enter_context(engine_named(config.engine).running(config.hosts.address, ignore))

        for label, variant in variant_configs(config, methods).items():
            finished, failures = [], []
            for name, seed in zip(run_labels(label, seeds), seeds, strict=True):
                one = variant.model_copy(update={"seed": seed})
                found = cached(one, folder)
                try:
                    if found is None:
                        start_engine()
                        _run(one, name, folder, dataset, display)
                    finished.append(found or cached(one, folder))
                except RunError as error:
                    failures.append(f"{name}: {error}")
            results[label] = Runs(tuple(one for one in finished if one is not None), tuple(failures))
    return results


def _run(config: Config, label: str, folder: Path, dataset: Callable[[], Dataset], display: Display) -> None:
    out = folder / cache_key(config)
    run(
        config,
        dataset=dataset(),
        out=out,
        resume=RunFolder(out).config.exists(),
        progress=display,
        label=label,
    )
