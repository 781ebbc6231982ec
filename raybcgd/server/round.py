"""One round from start to end: plan, broadcast, train, reduce, commit. The same on Ray and in one process."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from raybcgd.algorithms.api import Round
from raybcgd.client.host import Job, Orders, Outcome
from raybcgd.errors import RunError
from raybcgd.plan.cohort import Member, draw_cohort
from raybcgd.plan.phases import phase_at
from raybcgd.problem import Data, Problem
from raybcgd.record.rounds import Dropped, Participant
from raybcgd.server.evaluate import Piece, Score
from raybcgd.server.ledger import Ledger
from raybcgd.server.reduce import Expected, Reducer, average_buffers, keep_uncovered
from raybcgd.wire.upload import Traffic, total


class PoolNews(NamedTuple):
    """What happened to the hosts since it was last asked for."""

    hosts: int
    retried: int = 0
    rehomed: int = 0
    restarted: int = 0


class Pool(Protocol):
    """The hosts, wherever they run."""

    def train(
        self, jobs: Sequence[Job], down: Mapping[str, np.ndarray], orders: Orders, deadline: float | None
    ) -> Iterator[Outcome]:
        """Have all jobs done and yield outcomes as they come; jobs not done `deadline` seconds from now are left out."""

    def evaluate(self, models: Sequence[np.ndarray], parts: Sequence[Piece]) -> Callable[[], list[Score]]:
        """Start judging models; the returned function waits for the scores."""

    def news(self) -> PoolNews:
        """What happened since the last call."""

    def close(self) -> None:
        """Let all hosts go."""


@dataclass(frozen=True)
class RoundResult:
    """A round that has been computed, and committed by the ledger."""

    index: int
    server: Any
    phase: int
    lr: float
    participants: tuple[Participant, ...]
    dropped: tuple[Dropped, ...]
    upload: Traffic
    download: Traffic
    sampled: int
    drift_diversity: tuple[float | None, ...]
    phase_seconds: dict[str, float]
    seconds: float


def run_round(
    problem: Problem, data: Data, pool: Pool, server: Any, ledger: Ledger, index: int, trained: Tensor | None
) -> RoundResult:
    """Compute round `index` and commit it to the ledger, wholly or (by raising) not at all."""
    config, algorithm = problem.config, problem.config.algorithm
    clock = _Clock()
    cohort = draw_cohort(
        config.seed, index, problem.clients, problem.cohort_size, problem.num_blocks if algorithm.blockwise else None
    )
    orders = Orders(index, phase_at(config.data.phases, index))
    lr = algorithm.lr_at(index)
    expected = [_expected(problem, data, member, orders.phase) for member in cohort]
    jobs = [Job(member.client, member.block, ledger[member.client]) for member in cohort]
    rnd = Round(index, problem.clients, lr, float(np.mean([item.steps for item in expected])), orders.phase)
    clock.lap("plan")
    down = algorithm.broadcast(server, rnd)
    reducer = Reducer(algorithm, problem.wire, down, lr, trained, expected)
    outcomes: dict[int, Outcome] = {}
    arrays = {name: vector.numpy() for name, vector in down._asdict().items()}
    deadline = config.cohort.deadline_seconds
    for outcome in pool.train(jobs, arrays, orders, deadline):
        clock.lap("train")
        if outcome.error is not None and config.cohort.on_client_error == "stop":
            raise RunError(
                f"client {outcome.client} failed in round {index}: {outcome.error}; mend it, or set "
                'cohort.on_client_error = "drop" to go on without such clients'
            )
        outcomes[outcome.client] = outcome
        _add(reducer, outcome, index)
        clock.lap("reduce")
    clock.lap("train")
    for member in cohort:
        if member.client not in outcomes:
            reducer.add(member.client, None)
    reduced = reducer.result()
    after = algorithm.server_rule(server, reduced.total, rnd)
    after = average_buffers(server, after, reduced.total, trained)
    after = keep_uncovered(server, after, reduced.uncovered, problem.layout.size)
    _check_finite(problem, algorithm.models(after), index)
    there = [member for member in cohort if (o := outcomes.get(member.client)) is not None and o.error is None]
    ledger.commit({member.client: outcomes[member.client].state for member in there})
    clock.lap("reduce")
    return RoundResult(
        index=index,
        server=after,
        phase=orders.phase,
        lr=lr,
        participants=tuple(_participant(member, outcomes[member.client]) for member in there),
        dropped=tuple(_dropped(member, outcomes.get(member.client)) for member in cohort if member not in there),
        upload=total([problem.wire.upload(member.block, outcomes[member.client].payload) for member in there]),
        download=total([problem.wire.download] * len(cohort)),
        sampled=len(cohort),
        drift_diversity=reduced.drift_diversity,
        phase_seconds=clock.laps,
        seconds=clock.total(),
    )


def _expected(problem: Problem, data: Data, member: Member, phase: int) -> Expected:
    samples = int(data.partitions[phase].sizes[member.client])
    weight = float(samples) if problem.config.cohort.weighting == "samples" else 1.0
    return Expected(member, problem.config.local.num_steps(samples), weight)


def _add(reducer: Reducer, outcome: Outcome, index: int) -> None:
    try:
        reducer.add(outcome.client, outcome.payload)
    except RunError as error:
        raise RunError(f"round {index} diverged: {error}") from None


def _participant(member: Member, outcome: Outcome) -> Participant:
    return Participant(client=member.client, block=member.block, seconds=outcome.seconds, loss=outcome.loss)


def _dropped(member: Member, outcome: Outcome | None) -> Dropped:
    reason = "deadline" if outcome is None else outcome.error or ""
    return Dropped(client=member.client, block=member.block, reason=reason)


def _check_finite(problem: Problem, models: Sequence[Tensor], index: int) -> None:
    for model in models:
        if bool(torch.isfinite(model).all()):
            continue
        bad = next(b for b in problem.layout.all_blocks if not bool(torch.isfinite(model[b.slice]).all()))
        raise RunError(
            f"round {index} diverged: block {bad.name} of the global model is not finite; lower algorithm.lr "
            "(the last good checkpoint is kept)"
        )


class _Clock:
    """Seconds by the phase of a round."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._started = self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """What passed since the last lap belongs to `phase`."""
        now = time.perf_counter()
        self.laps[phase] = self.laps.get(phase, 0.0) + now - self._last
        self._last = now

    def total(self) -> float:
        return time.perf_counter() - self._started
