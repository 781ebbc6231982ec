"""Running an experiment: the function behind the command line and behind notebooks."""

import hashlib
import json
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from raybcgd.config import Config
from raybcgd.data.dataset import Dataset
from raybcgd.errors import ConfigError
from raybcgd.experiment import Experiment, RunFolder
from raybcgd.model.flat import FlatModel
from raybcgd.problem import Data, Problem, prepare
from raybcgd.record.logs import log_round
from raybcgd.record.metrics import run_name
from raybcgd.record.partition import partition_record
from raybcgd.record.rounds import RoundRecord
from raybcgd.server.local import LocalPool

Observer = Callable[[RoundRecord], None]
"""Called with every round's record as it comes."""
Announcer = Callable[[str], None]
"""Called with what a run is about to do when that takes seconds, such as "starting Ray"."""


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind."""

    records: tuple[RoundRecord, ...]
    summary: dict[str, Any]
    model: nn.Module
    """The trained model, on the CPU."""
    folder: Path


def run(
    config: Config,
    *,
    module: nn.Module | None = None,
    dataset: Dataset | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    observe: Observer | None = None,
    announce: Announcer | None = None,
) -> RunResult:
    """Run an experiment and return its records and its model.

    A module and a data set of one's own are passed as objects; an algorithm of one's own goes into the config:
    `Config(algorithm=Mine(lr=0.1))`. Files go to `out`, by default a new folder under `runs/`; with `resume` the run in
    that folder, or at `checkpoint.address`, goes on from its last checkpoint.
    """
    started = time.perf_counter()
    say = announce or _say_nothing
    say("reading the data")
    problem, data = prepare(config, module, dataset)
    folder = _open_folder(config, out, resume)
    if not folder.partition.exists():
        write_whole(folder.partition, partition_record(data).model_dump_json() + "\n")
    with ExitStack() as stack:
        session = _session(problem, data, folder, resume, stack, say)
        say("starting the hosts")
        for record in _confirming(session.records(), config, folder):
            log_round(record, run_name(folder.path))
            if observe is not None:
                observe(record)
        finals = session.final()
    records = tuple(folder.rounds)
    flat = FlatModel(problem.module(), problem.layout, problem.dtype, torch.device("cpu"))
    _save_final(flat, finals, folder)
    summary = summarise(problem, records, finals, time.perf_counter() - started)
    if config.analysis is not None:
        from raybcgd.analysis.analyst import Analyst  # it is seldom wanted

        say("analysing the run")
        summary["analysis"] = Analyst(problem, data, folder).report(config.analysis)
    write_whole(folder.summary, json.dumps(summary, indent=2) + "\n")
    flat.vector.copy_(torch.from_numpy(finals[0].copy()))
    return RunResult(records, summary, flat.module, folder.path)


def _say_nothing(_: str) -> None:
    pass


def _confirming(records: Iterator[RoundRecord], config: Config, folder: RunFolder) -> Iterator[RoundRecord]:
    """The records. The first one shows that a resumed checkpoint was of this experiment: its config may be replaced."""
    first = next(records, None)
    write_whole(folder.config, config.to_toml())
    if first is not None:
        yield first
        yield from records


class _LocalRun:
    """A run whose hosts are in this process."""

    def __init__(self, problem: Problem, data: Data, folder: RunFolder, resume: bool) -> None:
        self._problem = problem
        self._experiment = Experiment(problem, data, folder, resume)
        self._pool = LocalPool(problem, data, self._experiment.state_address)

    def records(self) -> Iterator[RoundRecord]:
        return self._experiment.run(self._pool)

    def final(self) -> list[np.ndarray]:
        return [model.numpy() for model in self._problem.config.algorithm.models(self._experiment.server)]

    def close(self) -> None:
        self._pool.close()


def _session(problem: Problem, data: Data, folder: RunFolder, resume: bool, stack: ExitStack, say: Announcer) -> Any:
    if problem.config.engine == "local":
        session: Any = _LocalRun(problem, data, folder, resume)
    else:
        from raybcgd.server.coordinator import RayRun, cluster  # Ray takes a second to import

        stack.enter_context(cluster(problem.config.hosts.address, say))
        session = RayRun(problem, data, folder, resume)
    stack.callback(session.close)
    return session


def _open_folder(config: Config, out: str | Path | None, resume: bool) -> RunFolder:
    folder = RunFolder(Path(out) if out is not None else new_folder(config.algorithm.name))
    if resume and not folder.config.exists() and config.checkpoint.address is None:
        raise ConfigError(f"{folder.path} holds no run to go on with; start it with `raybcgd train`")
    if not resume and folder.config.exists():
        raise ConfigError(
            f"{folder.path} already holds a run; choose another --out, or go on with `raybcgd resume {folder.path}`"
        )
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        if not resume:
            write_whole(folder.config, config.to_toml())
    except OSError as error:
        raise ConfigError(f"cannot write to {folder.path} ({error.strerror}); choose another --out") from None
    return folder


def new_folder(name: str) -> Path:
    """A folder under `runs/` that does not exist yet, named by the time and by what runs.

    In a job it is under `~/raybcgd-runs/` of the node where the job runs: Ray removes a job's working directory.
    """
    label = f"{time.strftime('%Y%m%d-%H%M%S')}-{name.replace('+', '_plus')}"
    if in_job():
        return Path.home() / JOB_RUNS / f"{label}-{secrets.token_hex(2)}"  # jobs may start in the same second
    stem = Path("runs") / label
    path, number = stem, 1
    while path.exists():
        number += 1
        path = stem.with_name(f"{stem.name}-{number}")
    return path


JOB_RUNS = "raybcgd-runs"
"""Where a job's files go, in the home folder of the node where it runs."""


def in_job() -> bool:
    """Whether this is the driver of a job that was submitted to a Ray cluster."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def write_whole(path: Path, text: str) -> None:
    """Write a file that nobody ever sees in part."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text)
    temporary.replace(path)


def _save_final(flat: FlatModel, models: list[np.ndarray], folder: RunFolder) -> None:
    """The final weights by the names of the module's state dict; further models get a number in front."""
    tensors = {}
    for number, model in enumerate(models):
        prefix = "" if number == 0 else f"model{number}."
        named = flat.named(torch.from_numpy(model.copy()))  # what came through Ray is read-only
        tensors.update({prefix + name: tensor.contiguous() for name, tensor in named.items()})
    temporary = folder.final.with_name(folder.final.name + ".part")
    temporary.write_bytes(save(tensors))
    temporary.replace(folder.final)


def summarise(
    problem: Problem, records: tuple[RoundRecord, ...], models: list[np.ndarray], seconds: float
) -> dict[str, Any]:
    """What one wants to know of a run at a glance."""
    judged = [record for record in records if record.accuracy is not None]
    accuracies = [record.accuracy for record in judged if record.accuracy is not None]
    tail = accuracies[-max(1, len(accuracies) // 10) :]
    digest = hashlib.sha256()
    for model in models:
        digest.update(np.ascontiguousarray(model).data)
    return {
        "algorithm": problem.config.algorithm.name,
        "rounds": len(records),
        "final_accuracy": accuracies[-1] if accuracies else None,
        "best_accuracy": max(accuracies, default=None),
        "last_tenth_accuracy": float(np.mean(tail)) if tail else None,
        "final_loss": judged[-1].loss if judged else None,
        "parameters": problem.layout.size,
        "upload_d": records[-1].upload_d_total if records else 0.0,
        "upload_floats": sum(record.upload_floats for record in records),
        "upload_bytes": sum(record.upload_bytes for record in records),
        "download_floats": sum(record.download_floats for record in records),
        "download_bytes": sum(record.download_bytes for record in records),
        "simulated_seconds": _sum_or_none([record.simulated_seconds for record in records]),
        "seconds": seconds,
        "round_seconds_median": float(np.median([record.seconds for record in records])) if records else None,
        "sha256": digest.hexdigest(),
        "stack": problem.stack,
        "versions": {
            "raybcgd": own_version(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "numpy", "ray")},
        },
    }


def _sum_or_none(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def own_version() -> str:
    """The installed version; a working directory that was sent to a cluster has none."""
    try:
        return version("raybcgd")
    except PackageNotFoundError:
        return "not installed"
