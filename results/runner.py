"""Run the studies. Every finished run is written at once, so an interrupted study continues where it stopped."""

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raybcgd import RunResult, run
from raybcgd.config import Config, make_config
from raybcgd.config.files import assign, tables_of
from raybcgd.data.dataset import Dataset
from raybcgd.data.settings import DataConfig
from raybcgd.data.sources import load
from raybcgd.errors import RunError
from raybcgd.problem import prepare
from raybcgd.record.summary import versions
from raybcgd.server.budget import expected_rounds
from results.optimum import to_optimum
from results.store import TUNING_SEED, Entry, Store, best, flat
from results.studies import Study

FOLDERS = {"fashion_mnist": "FASHION_MNIST", "cifar10": "CIFAR10"}
"""The environment variable with the folder of a data set."""
WORK = Path("runs/results")
"""Folder of the unfinished runs."""
EVALUATIONS = 120
"""Evaluations per final run, at most."""
SCORED = 5
"""Evaluations at the end of a tuning run whose mean is its score."""

Observe = Callable[[str], None]


class OutOfTime(Exception):
    """The time limit has been reached."""


class Runner:
    """Runs the missing runs of a study. `tuned` are the settings that the study starts from."""

    def __init__(
        self,
        study: Study,
        store: Store,
        tuned: Mapping[str, Any],
        observe: Observe = lambda _: None,
        deadline: float = math.inf,
    ) -> None:
        self._study, self._store, self._observe, self._deadline = study, store, observe, deadline
        self._variants = study.variants(tuned)
        dump = study.base(tuned).model_dump(mode="json", exclude_none=True, exclude={"compare", "version"})
        self._base = self._store.config = dump

    def total(self, seeds: int) -> int:
        """Return the number of runs."""
        return len(self._variants) * (seeds + self._study.points)

    def run(self, seeds: int) -> None:
        """Run what is missing of the first `seeds` seeds."""
        for label, config in self._variants.items():
            if self._study.tune_rounds is not None:
                config = _changed(config, self.tune(label, config, self._study.tune_rounds))
            every = -(-expected_rounds(prepare(config, None, dataset_of(config))[0]) // EVALUATIONS)
            config = _changed(config, {"evaluation.every": every})
            for seed in self._study.seeds[:seeds]:
                self._one("final", label, config.model_copy(update={"seed": seed}))

    def tune(self, label: str, config: Config, rounds: int) -> dict[str, Any]:
        """Return the settings with the best score on the validation data."""
        common = {"seed": TUNING_SEED, "data.evaluate_on": "validation", "evaluation.every": 2}
        common["rounds"] = min(rounds, config.rounds)

        def score(points: list[dict[str, Any]]) -> list[Entry]:
            return [self._one("tune", label, _changed(config, common | one), {"point": one}) for one in points]

        first = score(self._study.first_points())
        return _chosen(first + score(self._study.second_points(label, _chosen(first))))

    def _one(self, stage: str, label: str, config: Config, more: Mapping[str, Any] | None = None) -> Entry:
        key = run_key(config)
        found = self._store.find(key)
        if found is None:
            entry: Entry = {"stage": stage, "label": label, "seed": config.seed, "key": key, **(more or {})}
            entry["settings"] = self._differences(config)
            entry = {**(self._store.elsewhere(key) or self._new(config, stage, WORK / key)), **entry}
            self._store.add(entry)
        self._observe(f"{label}, {stage}")
        return found or entry

    def _new(self, config: Config, stage: str, folder: Path) -> Entry:
        """Run a config and return what its entry keeps."""
        if time.monotonic() > self._deadline:
            raise OutOfTime
        shutil.rmtree(folder, ignore_errors=True)
        try:
            kept = _results(run(config, dataset=dataset_of(config), out=folder, progress=False), stage)
            if self._study.to_optimum:
                kept |= to_optimum(config, dataset_of(config), folder)
        except RunError as error:  # it diverged
            kept = {"error": str(error), "score": None}
        shutil.rmtree(folder, ignore_errors=True)
        return kept | {"versions": versions() | {"cpu": torch.backends.cpu.get_cpu_capability()}}

    def _differences(self, config: Config) -> dict[str, Any]:
        """Return the settings that differ from the config of the study."""
        old, new = flat(self._base), flat(config.model_dump(mode="json", exclude_none=True, exclude={"version"}))
        return {key: value for key, value in new.items() if key not in old or old[key] != value}


def run_key(config: Config) -> str:
    """Return the hash of the settings that are not defaults, so that a new setting does not invalidate old runs."""
    unimportant = {"version", "engine", "hosts", "checkpoint", "metrics", "track", "compare"}
    settings = config.model_dump(mode="json", exclude_defaults=True, exclude=unimportant)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _chosen(runs: list[Entry]) -> dict[str, Any]:
    """Return the settings with the best score. If all diverged, the first, which has the smallest rate."""
    return dict((best(runs) or runs[0])["point"])


def _results(result: RunResult, stage: str) -> Entry:
    """Return the numbers of a run that its entry keeps."""
    summary, scored = result.summary, [record for record in result.records if record.quality.accuracy is not None]
    accuracies = [float(record.quality.accuracy or 0.0) for record in scored]
    kept = {name: summary[name] for name in ("rounds", "parameters", "upload_floats", "upload_bytes", "sha256")}
    kept |= {"upload_d": round(summary["upload_d_total"], 4), "seconds": round(summary["seconds"], 1)}
    if stage == "tune":
        return kept | {"score": round(float(np.mean(accuracies[-SCORED:])), 5)}
    losses = [record.quality.loss for record in scored]
    return kept | {
        "last_tenth_accuracy": round(summary["last_tenth_accuracy"], 5),
        "curve": {
            "round": [record.round + 1 for record in scored],
            "upload_d": [round(record.traffic.upload_d_total, 3) for record in scored],
            "accuracy": [round(value, 4) for value in accuracies],
            "loss": [None if loss is None or not math.isfinite(loss) else float(f"{loss:.4g}") for loss in losses],
        },
    }


def dataset_of(config: Config) -> Dataset:
    """Return the data set of a config. Its folder is in an environment variable."""
    name = FOLDERS.get(str(config.data.source))
    if name is not None and name not in os.environ:
        raise SystemExit(f"{name} is not set; set it to the folder of the data set {config.data.source}")
    root = None if name is None else os.environ[name]
    return _load(config.data.model_copy(update={"root": root}).model_dump_json(exclude={"partition", "phases"}))


@lru_cache(maxsize=2)
def _load(settings: str) -> Dataset:
    return load(DataConfig.model_validate_json(settings))


def _changed(config: Config, settings: Mapping[str, Any]) -> Config:
    return make_config(assign(tables_of(config), settings))
