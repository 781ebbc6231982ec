"""Run the experiments of a paper. Finished runs are cached by the hash of their config; unfinished ones resume."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raybcgd.compare.comparison import start_engine
from raybcgd.compare.variants import seeds_of, variant_configs
from raybcgd.config import Config
from raybcgd.data.dataset import Dataset
from raybcgd.data.sources import load
from raybcgd.errors import ConfigError, RunError
from raybcgd.experiment import run
from raybcgd.record.comparison import run_labels
from raybcgd.record.rounds import RoundLog, RoundRecord
from raybcgd.record.summary import read_summary
from raybcgd.report.progress import Display
from raybcgd.storage import RunFolder

_IRRELEVANT = {"version", "engine", "hosts", "checkpoint", "metrics", "track", "compare"}
"""Settings and tables that change neither the weights nor the records of a run."""


class Finished(NamedTuple):
    """A finished run."""

    key: str
    """The hash of its config, which is also its folder in the cache."""
    records: tuple[RoundRecord, ...]
    summary: dict[str, Any]


class Choice(NamedTuple):
    """Variants of one method, such as FedProx with several values of mu, of which only the best one counts."""

    labels: tuple[str, ...]
    accuracy: Callable[[Finished], float | None]
    """The accuracy of a run, as the paper reports it."""


class Runs(NamedTuple):
    """The runs of one variant, one per seed."""

    finished: tuple[Finished, ...]
    failures: tuple[str, ...]


def cache_key(config: Config) -> str:
    """Return the hash of all settings that affect the results. The location of the data files is not one of them."""
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
    return Finished(key, tuple(RoundLog(files.rounds)), read_summary(files.summary))


def run_variants(
    config: Config,
    folder: Path,
    methods: Iterable[str] | None,
    display: Display,
    choices: Iterable[Choice] = (),
) -> dict[str, Runs]:
    """Run the variants of a config with all its seeds, or those that `methods` selects. Return the runs by label.

    Of the variants in a choice, only the best one on the validation data is evaluated on the test data and returned. A
    run that fails, for example because it diverges, does not stop the others.
    """
    variants = variant_configs(config, methods, "--methods")
    with ExitStack() as stack:
        runner = _Runner(config, folder, display, stack)
        for choice in choices:
            candidates = {label: variants[label] for label in choice.labels if label in variants}
            if len(candidates) > 1:
                chosen = _choose(candidates, choice, runner)
                variants = {key: value for key, value in variants.items() if key == chosen or key not in candidates}
        return {label: runner.runs(label, variant) for label, variant in variants.items()}


def _choose(candidates: dict[str, Config], choice: Choice, runner: "_Runner") -> str:
    """Return the label with the best mean accuracy on the validation data, so that no choice depends on test data."""
    scores = {}
    for label, variant in candidates.items():
        if variant.data.validation_share == 0:
            raise ConfigError(
                f"data.validation_share = 0 leaves no data to choose among {', '.join(candidates)}; set it to 0.01 or "
                "more, or name one of them with --methods"
            )
        data = variant.data.model_copy(update={"evaluate_on": "validation"})
        done = runner.runs(f"{label}, validation", variant.model_copy(update={"data": data})).finished
        found = [choice.accuracy(one) for one in done]
        scores[label] = float(np.mean([-math.inf if value is None else value for value in found or [None]]))
    return max(scores, key=lambda label: scores[label])


class _Runner:
    """Runs variants with all seeds. The first run that is not cached loads the data and starts the engine."""

    def __init__(self, config: Config, folder: Path, display: Display, stack: ExitStack) -> None:
        self._config, self._folder, self._display, self._stack = config, folder, display, stack
        self._seeds = seeds_of(config)
        self._started = False
        self._datasets: dict[str, Dataset] = {}

    def runs(self, label: str, variant: Config) -> Runs:
        """Return the runs of a variant, from the cache if possible."""
        finished, failures = [], []
        for name, seed in zip(run_labels(label, self._seeds), self._seeds, strict=True):
            one = variant.model_copy(update={"seed": seed})
            found = cached(one, self._folder)
            try:
                if found is None:
                    self._start_engine()
                    _run(one, name, self._folder, self._dataset(one), self._display)
                finished.append(found or cached(one, self._folder))
            except RunError as error:
                failures.append(f"{name}: {error}")
        return Runs(tuple(one for one in finished if one is not None), tuple(failures))

    def _start_engine(self) -> None:
        if not self._started:
            start_engine(self._config, self._display, self._stack)
        self._started = True

    def _dataset(self, config: Config) -> Dataset:
        """Return the data set of a run. The data sets of the runs differ only in `data.evaluate_on`."""
        if config.data.evaluate_on not in self._datasets:
            self._datasets[config.data.evaluate_on] = load(config.data)
        return self._datasets[config.data.evaluate_on]


def _run(config: Config, label: str, folder: Path, dataset: Dataset, display: Display) -> None:
    out = folder / cache_key(config)
    run(
        config,
        dataset=dataset,
        out=out,
        resume=RunFolder(out).config.exists(),
        progress=display,
        label=label,
    )
