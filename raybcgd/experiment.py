"""The loop over rounds: what a run is, whoever runs its clients."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybcgd.errors import ConfigError, RunError
from raybcgd.model.flat import FlatModel
from raybcgd.plan.history import History
from raybcgd.problem import Data, Problem
from raybcgd.record.checkpoint import Checkpoints, Position
from raybcgd.record.metrics import RunLabels, RunPlan, exporting, run_name
from raybcgd.record.norms import shared_out
from raybcgd.record.rounds import RoundLog, RoundRecord
from raybcgd.server.evaluate import Score, combine, pieces
from raybcgd.server.ledger import Ledger
from raybcgd.server.round import Pool, PoolNews, RoundResult, run_round

log = logging.getLogger(__name__)

FREE = ("rounds", "engine", "hosts", "checkpoint", "evaluation", "analysis", "metrics", "compare")
"""Settings that may change on resume, because no bit of the weights depends on them."""


@dataclass(frozen=True)
class RunFolder:
    """The files of a run."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def rounds(self) -> RoundLog:
        return RoundLog(self.path / "rounds.jsonl")

    @property
    def partition(self) -> Path:
        return self.path / "partition.json"

    @property
    def final(self) -> Path:
        return self.path / "final.safetensors"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"


def identity(problem: Problem, data: Data) -> dict[str, Any]:
    """What must be the same for a run to go on with the same bits: the settings that matter, and the data."""
    settings = problem.config.model_dump(mode="json", exclude_none=True, exclude=set(FREE))
    digest = hashlib.sha256()
    for array in (data.dataset.train.targets, *(p.indices for p in data.partitions), data.dataset.train.inputs[:100]):
        digest.update(np.ascontiguousarray(array).data)
    return {**settings, "stack": problem.stack, "data_sha256": digest.hexdigest()}


class Experiment:
    """A run in progress: server state, ledger of client states, log and checkpoints."""

    def __init__(self, problem: Problem, data: Data, folder: RunFolder, resume: bool) -> None:
        self._problem, self._data, self._folder = problem, data, folder
        config = problem.config
        self.address = config.checkpoint.address or str(folder.path)
        self._checkpoints = Checkpoints(self.address, config.checkpoint.keep, identity(problem, data))
        flat = FlatModel(problem.module(), problem.layout, problem.dtype, torch.device("cpu"))
        self._trained = flat.trained
        self._server = config.algorithm.server_init(flat.vector.clone(), len(data.partitions))
        self._ledger = Ledger.fresh(problem.clients)
        self._history = History.fresh(problem.layout, config.blocks, config.cohort.assignment == "need")
        self._upload_d_total = 0.0
        self._saving_seconds = 0.0
        self._saved_at: float | None = None
        self._done = 0
        position = self._position(resume)
        folder.rounds.restore(b"" if position is None else position.log)
        if position is not None:
            self._server = type(self._server)(**_tensors(position.server))
            self._ledger = position.ledger.snapshot()
            if position.history:
                self._history = History.from_arrays(position.history)
            self._upload_d_total = position.upload_d_total
            self._done = position.rounds

    def _position(self, resume: bool) -> Position | None:
        """Where to go on; None to begin."""
        if not resume:
            self._checkpoints.refuse_others()
            return None
        position = self._checkpoints.latest()
        if position is None and self._folder.summary.exists():
            raise ConfigError(
                f"{self._folder.path} has no checkpoint that is whole, so its run, which has ended, cannot go on; "
                "start it anew with another --out, and checkpoint.every above 0"
            )
        if position is None and self._folder.rounds.content():
            log.warning("there is no checkpoint yet that is whole: the run begins again with its first round")
        if position is not None and position.rounds > self._problem.config.rounds:
            raise ConfigError(
                f"rounds = {self._problem.config.rounds}, but {position.rounds} rounds are done; raise it to go on"
            )
        return position

    @property
    def state_address(self) -> str:
        """Where client states are kept."""
        return f"{self.address}/states"

    @property
    def server(self) -> Any:
        """The server's state after the last round done."""
        return self._server

    @property
    def done(self) -> int:
        """Rounds that are done."""
        return self._done

    def run(self, pool: Pool) -> Iterator[RoundRecord]:
        """Do the rounds that are left; show each one's record to whoever looks at the metrics, and yield it."""
        config = self._problem.config
        labels = RunLabels(run_name(self._folder.path), config.algorithm.name, self._data.dataset.name)
        plan = RunPlan(config.rounds, self._problem.layout.size, config.checkpoint.every > 0)
        with exporting(config.metrics, labels, plan) as exporter:
            if self._done:
                exporter.take_up(self._folder.rounds)
            for record in self._rounds(pool):
                exporter.observe(record, self._saved_at)
                yield record

    def _rounds(self, pool: Pool) -> Iterator[RoundRecord]:
        """Do the rounds that are left; yield a record for each, once its evaluation is there.

        A round's evaluation and its checkpoint are finished while the next round trains.
        """
        rounds = self._problem.config.rounds
        pending: _Pending | None = None
        for index in range(self._done, rounds):
            try:
                result = run_round(
                    self._problem, self._data, pool, self._server, self._ledger, self._history, index, self._trained
                )
            except RunError:
                if pending is not None:  # the round before this one did happen
                    yield self._finish(pending, pool)
                raise
            if pending is not None:
                yield self._finish(pending, pool)
            self._server, self._history = result.server, result.history
            self._done = index + 1
            pending = self._pending(result, pool)
        if pending is not None:
            yield self._finish(pending, pool)

    def _pending(self, result: RoundResult, pool: Pool) -> "_Pending":
        config = self._problem.config
        news = pool.news()  # now, so that what happens to hosts is told of the round in which it happened
        self._upload_d_total += result.upload.floats / (max(1, len(result.participants)) * self._problem.layout.size)
        scores = None
        parts = pieces([len(rows) for rows in self._data.test_rows], config.evaluation.batch_size)
        if config.evaluation.due(result.index, config.rounds):
            models = [model.numpy() for model in config.algorithm.models(result.server)]
            if len(models) == 1:  # a method without a model for every data phase is judged with its one on all
                models *= len(self._data.test_rows)
            scores = pool.evaluate(models, parts)
        position = None
        if config.checkpoint.due(result.index, config.rounds):
            server = {name: vector.numpy() for name, vector in result.server._asdict().items()}
            position = Position(
                result.index + 1, server, self._ledger.snapshot(), b"", self._upload_d_total, result.history.arrays()
            )
        on_disk = self._ledger.files * self._problem.state_bytes
        return _Pending(result, scores, position, self._upload_d_total, news, on_disk)

    def _finish(self, pending: "_Pending", pool: Pool) -> RoundRecord:
        started = time.perf_counter()
        quality = None
        if pending.scores is not None:
            config = self._problem.config
            parts = pieces([len(rows) for rows in self._data.test_rows], config.evaluation.batch_size)
            quality = combine(parts, pending.scores(), len(self._data.test_rows))
        waited = time.perf_counter() - started
        result, news = pending.result, pending.news
        saving, self._saving_seconds = self._saving_seconds, 0.0
        losses = [np.inf if participant.loss is None else participant.loss for participant in result.participants]
        record = RoundRecord(
            round=result.index,
            phase=result.phase,
            accuracy=None if quality is None else quality.accuracy,
            accuracy_by_phase=None if quality is None or len(quality.by_phase) == 1 else quality.by_phase,
            loss=None if quality is None else quality.loss,
            train_loss=float(np.mean(losses)) if losses else None,
            lr=result.lr,
            participants=result.participants,
            dropped=result.dropped,
            upload_floats=result.upload.floats,
            upload_bytes=result.upload.bytes,
            upload_d=result.upload.floats / (max(1, len(result.participants)) * self._problem.layout.size),
            upload_d_total=pending.upload_d_total,
            upload_floats_by_block=result.upload.by_block,
            upload_bytes_by_block=shared_out(result.upload.bytes, result.upload.by_block),
            compression_ratio=result.compression_ratio,
            download_floats=result.download.floats,
            download_bytes=result.download.bytes,
            download_floats_by_block=result.download.by_block,
            drift_diversity=result.drift_diversity,
            movement=result.movement,
            server_norms=result.server_norms,
            block_edges=result.edges,
            simulated_seconds=result.simulated_seconds,
            seconds=result.seconds + waited + saving,
            phase_seconds=_phases(result.phase_seconds, news.broadcast_seconds, waited, saving),
            finished_at=time.time(),
            hosts=news.hosts,
            hosts_pending=news.pending,
            queued=news.queued,
            retried=news.retried,
            rehomed=news.rehomed,
            restarted=news.restarted,
            state_memory_bytes=news.state_bytes,
            state_disk_bytes=pending.state_disk_bytes,
            object_store_bytes=news.store_bytes,
            object_store_capacity_bytes=news.store_capacity_bytes,
            device_memory_bytes=news.device_bytes,
        )
        self._folder.rounds.append(record)
        if pending.position is not None:
            position = replace(pending.position, log=self._folder.rounds.content())
            started = time.perf_counter()
            self._checkpoints.save(position, self._ledger.superseded)
            self._saving_seconds, self._saved_at = time.perf_counter() - started, time.time()
        return record


@dataclass(frozen=True)
class _Pending:
    """A round that is done but for its evaluation and its checkpoint."""

    result: RoundResult
    scores: Callable[[], list[Score]] | None
    position: Position | None
    upload_d_total: float
    news: PoolNews
    state_disk_bytes: int


def _phases(done: Mapping[str, float], broadcast: float, evaluate: float, checkpoint: float) -> dict[str, float]:
    """A round's phases; what the pool took for the broadcast was counted as training."""
    moved = {"broadcast": done["broadcast"] + broadcast, "train": max(0.0, done["train"] - broadcast)}
    return {**done, **moved, "evaluate": evaluate, "checkpoint": checkpoint}


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
