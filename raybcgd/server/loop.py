"""The loop over rounds: server state, log, checkpoints and metrics. The same for every engine."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from raybcgd.errors import ConfigError, RunError
from raybcgd.messages import Score
from raybcgd.plan.history import History
from raybcgd.problem import Data, Problem
from raybcgd.record.checkpoint import Checkpoints, Expected, Position
from raybcgd.record.ledger import Ledger
from raybcgd.record.metrics import RunInfo, exporting
from raybcgd.record.rounds import RoundLog, RoundRecord, Timing
from raybcgd.record.summary import qualities
from raybcgd.server.budget import Spent, expected_rounds
from raybcgd.server.client_quality import client_pieces
from raybcgd.server.evaluation import combine, metric_names, pieces
from raybcgd.server.pool import Pool
from raybcgd.server.round import RunState, run_round
from raybcgd.storage import RunFolder

log = logging.getLogger(__name__)

FREE = (
    "version",
    "rounds",
    "budget",
    "engine",
    "hosts",
    "checkpoint",
    "evaluation",
    "analysis",
    "metrics",
    "track",
    "compare",
    "objects",
)
"""Settings that may change on resume, because the weights do not depend on them."""


def identity(problem: Problem, data: Data) -> dict[str, Any]:
    """Return what a resumed run must have in common with its checkpoint: settings, and a hash of the data."""
    settings = problem.config.model_dump(mode="json", exclude_none=True, exclude=set(FREE))
    digest, train = hashlib.sha256(), data.dataset.train
    for array in (train.targets, *(partition.indices for partition in data.partitions), train.inputs[:100]):
        digest.update(np.ascontiguousarray(array).data)
    return {**settings, "stack": problem.stack, "data_sha256": digest.hexdigest()}


def initial_state(problem: Problem, data: Data) -> RunState:
    """Return the state before round 0."""
    config = problem.config
    return RunState(
        rounds=0,
        server=problem.algorithm.server_init(problem.flat_model().vector, len(data.partitions)),
        ledger=Ledger.fresh(problem.clients),
        history=History.fresh(problem.layout, config.blocks, config.cohort.assignment == "need"),
    )


def expected(fresh: RunState) -> Expected:
    """Return what the checkpoints of a run that starts with `fresh` look like."""
    server = {name: vector.numpy() for name, vector in fresh.server._asdict().items()}
    return Expected(server, fresh.history.arrays(), len(fresh.ledger.segments))


def restored_state(fresh: RunState, position: Position) -> RunState:
    """Return the state in a checkpoint."""
    return RunState(
        rounds=position.rounds,
        server=type(fresh.server)(**{name: torch.tensor(array) for name, array in position.server.items()}),
        ledger=position.ledger.snapshot(),
        history=History.from_arrays(position.history) if position.history else fresh.history,
        upload_d_total=position.upload_d_total,
    )


class TrainingLoop:
    """A run in progress."""

    def __init__(self, problem: Problem, data: Data, folder: RunFolder, resume: bool) -> None:
        self._problem, self._data, self._folder = problem, data, folder
        config = problem.config
        address = config.checkpoint.address or str(folder.path)
        self.state_address = f"{address}/states"
        self._log = RoundLog(folder.rounds)
        self._pieces = pieces([len(rows) for rows in data.test_rows], config.evaluation.batch_size)
        if config.evaluation.clients:
            self._pieces += client_pieces(config.evaluation, data.partitions, config.seed)
        self._saving_seconds = 0.0
        self._saved_at: float | None = None
        self._state = fresh = initial_state(problem, data)
        self._checkpoints = Checkpoints(
            address, config.checkpoint.keep, identity(problem, data), problem.state_layout, expected(fresh)
        )
        position = self._position(resume)
        self._log.restore(b"" if position is None else position.log)
        self._device: str | None = None
        if position is not None:
            self._state = restored_state(self._state, position)
            self._device = next((record.hosts.device for record in reversed(list(self._log))), None)
        self._spent = Spent.on(self._log)
        self._qualities = qualities(self._log)

    def _position(self, resume: bool) -> Position | None:
        """Return the checkpoint to resume from, or None to start at round 0."""
        if not resume:
            self._checkpoints.refuse_others()
            return None
        position, rounds = self._checkpoints.latest(), self._problem.config.rounds
        if position is None and self._folder.summary.exists():
            raise ConfigError(
                f"{self._folder.path} has no usable checkpoint, so its finished run cannot continue; start a new run "
                "with another --out and checkpoint.every of at least 1"
            )
        if position is None and self._log.content():
            log.warning("no usable checkpoint: the run starts again at round 0")
        if position is not None and position.rounds > rounds:
            raise ConfigError(f"rounds = {rounds}, but {position.rounds} rounds are done; raise rounds to continue")
        self._checkpoints.clean()  # only now: a refused resume changes no file
        return position

    @property
    def rounds_done(self) -> int:
        """The rounds of the checkpoint from which the run resumed, and those after it."""
        return self._state.rounds

    def models(self) -> list[np.ndarray]:
        """Return the current global models: one, or one per data phase."""
        return [model.cpu().numpy() for model in self._problem.algorithm.models(self._state.server)]

    def run(self, pool: Pool) -> Iterator[RoundRecord]:
        """Run the remaining rounds, export their metrics, and yield their records."""
        config = self._problem.config
        info = RunInfo(
            run=self._folder.run_name,
            algorithm=self._problem.algorithm.name,
            dataset=self._data.dataset.name,
            rounds=expected_rounds(self._problem),
            parameters=self._problem.layout.size,
            saves=config.checkpoint.every > 0,
            folder=str(self._folder.path.absolute()),
        )
        with closing(self._checkpoints), exporting(config.metrics, info, pool.live) as exporter:
            if exporter is not None:
                exporter.replay(self._log)
            for record in self._rounds(pool):
                if exporter is not None:
                    exporter.observe(record, self._saved_at)
                yield record

    def _rounds(self, pool: Pool) -> Iterator[RoundRecord]:
        """Run the remaining rounds. The evaluation and checkpoint of a round finish while the next round trains."""
        pending: _Pending | None = None
        self._move_server(pool.server_device)
        while not self._done:
            meanwhile = partial(self._log_early, pending)
            try:
                state, record = run_round(self._problem, self._data, pool, self._state, meanwhile)
            except (RunError, KeyboardInterrupt):
                yield from self._finish(pending)  # the previous round is already committed
                raise
            yield from self._finish(pending)
            self._warn_about_devices(record)
            self._state, self._spent = state, self._spent.plus(record)
            pending = self._pending(record, pool)
            if self._problem.config.budget.by_quality:
                yield from self._finish(pending)
                pending = None
        yield from self._finish(pending)
        self._move_server(torch.device("cpu"))  # so that the next run of this process has the accelerator's memory

    def _move_server(self, device: torch.device) -> None:
        server = self._state.server
        self._state = replace(self._state, server=type(server)(*(vector.to(device) for vector in server)))

    @property
    def _done(self) -> bool:
        config = self._problem.config
        spent = self._state.rounds >= config.rounds or self._spent.reaches(config.budget)
        return spent or config.budget.is_enough(self._qualities)

    def _warn_about_devices(self, record: RoundRecord) -> None:
        """Warn if a resumed run, or a replaced host, continues on another kind of device."""
        before, now = self._device, record.hosts.device
        self._device = now or before
        if before and now and before != now:
            log.warning(
                "round %d ran on %s, the rounds before on %s: the weights can differ in their last bits from a run on "
                "one kind of device",
                *(record.round, now, before),
            )

    def _pending(self, record: RoundRecord, pool: Pool) -> "_Pending":
        """Start the evaluation of a committed round, and keep what its checkpoint needs."""
        config, state = self._problem.config, self._state
        scores, position = None, None
        rounds = state.rounds if self._done else config.rounds
        if config.evaluation.due(record.round, rounds):
            models = list(self._problem.algorithm.models(state.server))
            if len(models) == 1:  # a single model is evaluated on every data phase
                models *= len(self._data.test_rows)
            scores = pool.evaluate(models, self._pieces)
        if config.checkpoint.due(record.round, rounds):
            position = Position(
                rounds=state.rounds,
                server={name: vector.cpu().numpy() for name, vector in state.server._asdict().items()},
                ledger=state.ledger.snapshot(),
                upload_d_total=state.upload_d_total,
                history=state.history.arrays(),
            )
        return _Pending(record, scores, position)

    def _finish(self, pending: "_Pending | None") -> Iterator[RoundRecord]:
        """Log a round, unless that was done early, save its checkpoint, and yield its record."""
        if pending is None:
            return
        record = pending.logged or self._log_round(pending)
        started = time.perf_counter()
        if pending.position is not None:
            self._checkpoints.save(replace(pending.position, log=self._log.content()))
            self._saved_at = time.time()
        self._checkpoints.maintain(self._state.ledger, self._state.rounds)
        self._saving_seconds = time.perf_counter() - started
        yield record

    def _log_early(self, pending: "_Pending | None") -> None:
        """Log the previous round while the hosts train the next one, unless its evaluation must be waited for."""
        if pending is not None and pending.scores is None:
            self._log_round(pending)

    def _log_round(self, pending: "_Pending") -> RoundRecord:
        """Wait for the evaluation of a round and log the round."""
        started, record, quality = time.perf_counter(), pending.record, pending.record.quality
        if pending.scores is not None:
            names = metric_names(self._problem.config.evaluation)
            regression = self._data.dataset.regression
            evaluated = combine(self._pieces, pending.scores(), len(self._data.test_rows), names, regression)
            quality = evaluated.model_copy(update={"train_loss": quality.train_loss})
        waited, saving = time.perf_counter() - started, self._saving_seconds
        timing = Timing(
            seconds=record.timing.seconds + waited + saving,
            stage_seconds={**record.timing.stage_seconds, "evaluate": waited, "checkpoint": saving},
            finished_at=time.time(),
        )
        record = record.model_copy(update={"quality": quality, "timing": timing})
        self._qualities += qualities([record])
        self._log.append(record)
        pending.logged = record
        return record


@dataclass
class _Pending:
    """A committed round that waits for its evaluation and its checkpoint."""

    record: RoundRecord
    scores: Callable[[], list[Score]] | None
    position: Position | None
    logged: RoundRecord | None = None
    """The complete record, when it is in the log."""
