"""`run`: one experiment from its config to its result. The command line and notebooks both call it."""

import json
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from raybcgd.algorithms.contract import title
from raybcgd.config import resume_command, run_tables
from raybcgd.config.objects import ObjectsConfig
from raybcgd.config.schema import Config
from raybcgd.data.dataset import Dataset
from raybcgd.engine.engines import engine_named
from raybcgd.engine.session import Announcer
from raybcgd.errors import ConfigError, DivergedError, RunError
from raybcgd.problem import Data, Problem, prepare
from raybcgd.record.checkpoint import difference
from raybcgd.record.lock import locked
from raybcgd.record.logs import log_round, log_step
from raybcgd.record.partition import partition_record
from raybcgd.record.rounds import RoundLog, RoundRecord
from raybcgd.record.summary import summarise, versions
from raybcgd.report.progress import Display, as_display
from raybcgd.report.trackers import tracking
from raybcgd.results import RunResult, finished_run, save_models
from raybcgd.server.budget import ended_by, expected_rounds
from raybcgd.server.loop import FREE, check_rounds, elsewhere
from raybcgd.storage import RunFolder, check_holds, make_address, new_folder, write_atomic

Observer = Callable[[RoundRecord], None]
"""A function that is called with the record of each round. What it returns is ignored."""


def run(
    config: Config,
    *,
    module: nn.Module | None = None,
    dataset: Dataset | tuple[Any, ...] | None = None,
    partition: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
    observe: Observer | None = None,
    progress: bool | Display = True,
    label: str | None = None,
) -> RunResult:
    """Run an experiment and return its records and its model.

    Pass a custom module or data set as an object. The run starts from the module's weights, whatever the seed. A data
    set can also be a pair (train, test) of torch data sets, or (x, y, x_test, y_test). `partition` assigns the training
    samples to clients: one list of sample indices per client, a dict of such lists by client name, or one client id per
    training sample. Put a custom algorithm, partitioner, codec or loss into the config:
    `Config(algorithm=Mine(lr=0.1))`. Files are written to `out`; the default is a new folder under `runs/`. With
    `resume`, the run in that folder, or at `checkpoint.address`, continues from its last checkpoint. Progress is shown
    on standard error, or in the notebook, with `label` as the name of the run; `progress=False` shows nothing.

    `observe` is called in this process with the record of each round, in order, after the record has been logged; by
    then, the next round may already have run. If it raises an exception, the run ends with that exception and can be
    resumed from its last checkpoint.
    """
    started = time.perf_counter()
    if not isinstance(config, Config):
        raise ConfigError(f"config is {type(config).__name__}; pass a Config, or load_config(path)")
    with as_display(progress).run(label or title(type(config.algorithm))) as watcher:
        watcher.announce("preparing the data and the model")
        problem, data = prepare(config, module, dataset, partition)
        config = problem.config
        watcher.expect(expected_rounds(problem))
        folder = _open_folder(config, problem.algorithm.name, out, resume)
        if resume:
            finished = _finished(problem, folder)
            if finished is not None:
                watcher.finished(finished.records)
                return finished
            check_rounds(problem, data, folder)
        if not folder.partition.exists():
            write_atomic(folder.partition, partition_record(data.dataset, data.partitions).model_dump_json() + "\n")
        with tracking(config, folder) as trackers:

            def observed(record: RoundRecord) -> None:
                trackers.observe(record)
                watcher.observe(record)
                if observe is not None:
                    observe(record)

            def announced(step: str, detail: str = "") -> None:
                log_step(folder.run_name, step, detail)
                watcher.announce(step, detail)

            try:
                result = _run(problem, data, folder, resume, started, observed, announced)
            except DivergedError as error:
                write_atomic(folder.diverged, f"{error}\n")
                raise
        watcher.end(result.summary["ended_by"])
        return result


def _run(
    problem: Problem,
    data: Data,
    folder: RunFolder,
    resume: bool,
    started: float,
    observe: Observer,
    announce: Announcer,
) -> RunResult:
    """Run the rounds, and write the final model and the summary."""
    config = problem.config
    engine = engine_named(config.engine)
    with (
        locked(str(folder.path), config.checkpoint.address) as locks,
        engine.running(config.hosts.address, announce),
        closing(engine.open(problem, data, folder, resume)) as session,
    ):
        ran = set()
        for record in _confirmed(session.records(announce), config, folder):
            ran.add(record.round)
            for lock in locks:
                lock.check()
            log_round(record, folder.run_name)
            observe(record)
        models = session.models()
    records = tuple(RoundLog(folder.rounds))
    limit = ended_by(config, records)
    if limit is not None:
        log_step(folder.run_name, f"ended after {len(records)} rounds", limit)
    # Of earlier processes, only the time of their rounds is known.
    earlier_seconds = sum(record.timing.seconds for record in records if record.round not in ran)
    flat = problem.flat_model()
    save_models(folder, flat, models)
    summary = {
        "algorithm": problem.algorithm.name,
        **summarise(records, models, earlier_seconds + time.perf_counter() - started),
        "ended_by": limit,
        "parameters": problem.parameters,
        "d": problem.layout.size,
        "input_shape": problem.input_shape,
        "classes": problem.classes,
        "stack": problem.stack,
        "devices": sorted({record.hosts.device for record in records if record.hosts.device}),
        "versions": versions(),
    }
    if config.analysis is not None:
        from raybcgd.analysis.analyst import Analyst  # imported here because few runs need it

        announce("analysing the run")
        summary["analysis"] = Analyst(problem, data, folder).report(config.analysis)
    write_atomic(folder.summary, json.dumps(summary, indent=2) + "\n")
    folder.diverged.unlink(missing_ok=True)  # of an earlier process, whose code has been corrected
    flat.vector.copy_(torch.from_numpy(models[0].copy()))
    return RunResult(records, summary, flat.module.eval(), folder.path)


def _finished(problem: Problem, folder: RunFolder) -> RunResult | None:
    """Return the result of the run in a folder if no round is left, and only limits on its length have changed."""
    config = problem.config
    if not (folder.summary.exists() and folder.final.exists() and folder.config.exists()):
        return None
    try:
        result = finished_run(folder, problem)
    except (ConfigError, RuntimeError, SafetensorError):  # damaged files, which the run then writes again
        return None
    done = len(result.records)
    recorded, wanted = run_tables(folder), tomllib.loads(config.to_toml())
    same = all(recorded.get(key) == wanted.get(key) for key in {*recorded, *wanted} - {"rounds", "budget"})
    ended = done == config.rounds or ended_by(config, result.records) is not None
    return result if same and ended and done == result.summary["rounds"] else None


def changed_settings(folder: RunFolder, config: Config) -> list[str]:
    """Return how a config differs from that of the run in a folder, apart from settings that may change on resume."""
    recorded, wanted = run_tables(folder), tomllib.loads(config.to_toml())
    for tables in (recorded, wanted):
        for key in FREE:
            tables.pop(key, None)
    return difference(recorded, wanted, where=f"in {folder.path.name}")


def _confirmed(records: Iterator[RoundRecord], config: Config, folder: RunFolder) -> Iterator[RoundRecord]:
    """Yield the records. Write the config after the first record: a resume can be refused before that."""
    first = next(records, None)
    write_atomic(folder.config, config.to_toml())
    if first is not None:
        yield first
        yield from records


def _open_folder(config: Config, algorithm: str, out: str | Path | None, resume: bool) -> RunFolder:
    path = Path(out) if out is not None else new_folder(algorithm)
    folder = RunFolder(path)
    if not folder.config.exists():
        check_holds(path, "run")
    if resume and not folder.config.exists() and config.checkpoint.address is None:
        raise ConfigError(f"{path} holds no run to resume; start one with `raybcgd train`")
    if resume and folder.config.exists() and config.objects is None:
        check_objects(folder)
    if resume and folder.config.exists():
        _check_experiment(folder, config)
    if not resume and (folder.config.exists() or folder.rounds.exists()):
        try:
            how = resume_command(run_tables(folder), folder)
        except ConfigError:  # such as a damaged config
            how = f"raybcgd resume {path}"
        raise ConfigError(f"{path} already holds a run; choose another --out, or use `{how}`")
    if config.checkpoint.address is not None:
        make_address(config.checkpoint.address)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not resume:
            write_atomic(folder.config, config.to_toml())
    except (OSError, RunError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        reason = getattr(cause, "strerror", None) or error
        raise ConfigError(f"cannot write to {path} ({reason}); choose another --out") from None
    return folder


def _check_experiment(folder: RunFolder, config: Config) -> None:
    """Refuse to resume a run that has rounds if its settings have changed, wherever its checkpoints are."""
    if not (folder.summary.exists() or RoundLog(folder.rounds).content()):
        return
    if differences := changed_settings(folder, config):
        same = run_tables(folder).get("checkpoint", {}).get("address") == config.checkpoint.address
        place = elsewhere(config, folder) if same else "in another folder"
        raise ConfigError(
            f"the run in {folder.path} belongs to another experiment: {'; '.join(differences[:5])}; restore these "
            f"settings, or start a new run {place}"
        )


def check_objects(folder: RunFolder) -> None:
    """Raise an error if the run in a folder used Python objects."""
    recorded = run_tables(folder).get("objects")
    if recorded:
        call = ObjectsConfig.model_validate(recorded).call
        raise ConfigError(f"the run in {folder.path} used Python objects; resume it from Python: {call}")
