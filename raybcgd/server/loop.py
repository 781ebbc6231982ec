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

from raybcgd.config.schema import Config
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
"""Settings that may change on resume. Apart from rounding errors, the weights after a round do not depend on them."""


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


def elsewhere(config: Config, folder: RunFolder) -> str:
    """Return where a new run would meet neither the rounds in a folder nor the checkpoints at the config's address."""
    if config.checkpoint.address is None:
        return "in another folder"
    has_rounds = folder.summary.exists() or bool(RoundLog(folder.rounds).content())
    return f"{'in another folder and ' if has_rounds else ''}at another checkpoint.address"


def check_rounds(problem: Problem, data: Data, folder: RunFolder) -> None:
    """Refuse to resume a run with fewer rounds than are done. Call it before starting an engine, which takes time."""
    config = problem.config
    if RoundLog(folder.rounds).content().count(b"\n") > config.rounds:  # some may not be in a checkpoint
        address = config.checkpoint.address or str(folder.path)
        place = elsewhere(config, folder)
        saved = Checkpoints(
            address, config.checkpoint.keep, identity(problem, data), problem.state_layout, elsewhere=place
        )
        _refuse_fewer(config.rounds, saved.newest())


def _refuse_fewer(rounds: int, position: Position | None) -> None:
    if position is not None and position.rounds > rounds:
        raise ConfigError(f"rounds = {rounds}, but {position.rounds} rounds are done; raise rounds to continue")


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
            address,
            config.checkpoint.keep,
            identity(problem, data),
            problem.state_layout,
            expected(fresh),
            elsewhere(config, folder),
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
            never = not self._problem.config.checkpoint.every
            raise ConfigError(
                f"{self._folder.path} has no usable checkpoint, so its finished run cannot continue; start a new run "
                f"in another folder{', with checkpoint.every of at least 1' if never else ''}"
            )
        if position is None and self._log.content():
            log.warning("no usable checkpoint: the run starts again at round 1")
        _refuse_fewer(rounds, position)
        self._checkpoints.clean()  # only now, so that a refused resume changes no file
        return position

    @property
    def rounds_done(self) -> int:
        """Number of finished rounds, including those before a resume."""
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
        """Run the remaining rounds.

        A round's evaluation overlaps the next round. Its checkpoint is saved when the next round has run.
        """
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
        self._move_server(torch.device("cpu"))  # frees the accelerator's memory for the next run of this process

    def _move_server(self, device: torch.device) -> None:
        server = self._state.server
        self._state = replace(self._state, server=type(server)(*(vector.to(device) for vector in server)))

    @property
    def _done(self) -> bool:
        config = self._problem.config
        spent = self._state.rounds >= config.rounds or self._spent.reaches(config.budget) is not None
        return spent or config.budget.enough(self._qualities) is not None

    def _warn_about_devices(self, record: RoundRecord) -> None:
        """Warn if a resumed run, or a replaced host, continues on another kind of device."""
        before, now = self._device, record.hosts.device
        self._device = now or before
        if before and now and before != now:
            log.warning(
                "round %d ran on %s, the rounds before on %s: the weights can differ in their last bits from a run on "
                "one kind of device",
                *(record.round + 1, now, before),
            )

    def _pending(self, record: RoundRecord, pool: Pool) -> "_Pending":
        """Start the evaluation of a committed round, and keep what its checkpoint needs."""
        config, state = self._problem.config, self._state
        scores, started = None, time.perf_counter()
        rounds = state.rounds if self._done else config.rounds
        if config.evaluation.due(record.round, rounds):
            models = list(self._problem.algorithm.models(state.server))
            if len(models) == 1:  # a single model is evaluated on every data phase
                models *= len(self._data.test_rows)
            scores = pool.evaluate(models, self._pieces)
        seconds = time.perf_counter() - started
        position = self._snapshot() if config.checkpoint.due(record.round, rounds) else None
        return _Pending(record, scores, position, seconds)

    def _snapshot(self) -> Position:
        state = self._state
        return Position(
            rounds=state.rounds,
            server={name: vector.cpu().numpy() for name, vector in state.server._asdict().items()},
            ledger=state.ledger.snapshot(),
            upload_d_total=state.upload_d_total,
            history=state.history.arrays(),
        )

    def _finish(self, pending: "_Pending | None") -> Iterator[RoundRecord]:
        """Log a round, unless that was done early, save its checkpoint, and yield its record."""
        if pending is None:
            return
        record = pending.logged or self._log_round(pending)
        started, budget, saves = time.perf_counter(), self._problem.config.budget, self._problem.config.checkpoint.every
        position = pending.position
        if position is None and saves and budget.by_quality and self._done:  # its evaluation made this round the last
            position = self._snapshot()
        if position is not None:
            self._checkpoints.save(replace(position, log=self._log.content()))
            self._saved_at = time.time()
        self._checkpoints.maintain(self._state.ledger, self._state.rounds)
        self._saving_seconds = time.perf_counter() - started
        yield record

    def _log_early(self, pending: "_Pending | None") -> None:
        """Log the previous round while the hosts train the next one, unless it is being evaluated."""
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
        waited, saving = pending.started_seconds + time.perf_counter() - started, self._saving_seconds
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
    """A committed round whose evaluation and checkpoint are not finished."""

    record: RoundRecord
    scores: Callable[[], list[Score]] | None
    position: Position | None
    started_seconds: float
    """Time to start the evaluation. In one process, this is the whole evaluation."""
    logged: RoundRecord | None = None
    """The complete record, once it is in the log."""
