"""One round from start to end: plan, broadcast, train, reduce, commit. The same on Ray and in one process."""

import math
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
from raybcgd.model.blocks import BlockLayout
from raybcgd.plan.assignment import Dealing, by_bandwidth, by_need, evenly
from raybcgd.plan.cohort import Member, draw_cohort
from raybcgd.plan.history import History
from raybcgd.plan.links import simulated_seconds
from raybcgd.plan.phases import phase_at
from raybcgd.problem import Data, Problem
from raybcgd.record.norms import block_norms, server_norms
from raybcgd.record.rounds import Dropped, Participant
from raybcgd.server.evaluate import Piece, Score
from raybcgd.server.ledger import Ledger
from raybcgd.server.reduce import Expected, Reducer, average_buffers, keep_uncovered
from raybcgd.wire.upload import Traffic, Wire, total


class PoolNews(NamedTuple):
    """What happened to the hosts since it was last asked for."""

    hosts: int
    retried: int = 0
    rehomed: int = 0
    restarted: int = 0
    pending: int = 0
    queued: int = 0
    broadcast_seconds: float = 0.0
    """The part of training that went into handing out the broadcast."""
    state_bytes: int = 0
    device_bytes: int | None = None
    store_bytes: int | None = None
    store_capacity_bytes: int | None = None


class Pool(Protocol):
    """The hosts, wherever they run."""

    def train(
        self, jobs: Sequence[Job], down: Mapping[str, np.ndarray], orders: Orders, deadline: float | None
    ) -> Iterator[Outcome]:
        """Have all jobs done and yield outcomes as they come, leaving out those not done in `deadline` seconds."""

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
    history: History
    phase: int
    lr: float
    participants: tuple[Participant, ...]
    dropped: tuple[Dropped, ...]
    upload: Traffic
    download: Traffic
    sampled: int
    compression_ratio: float
    drift_diversity: tuple[float | None, ...]
    movement: tuple[float, ...]
    server_norms: dict[str, tuple[float, ...]]
    edges: tuple[int, ...] | None
    """The edges of the round's blocks, where they are not those of the config."""
    simulated_seconds: float | None
    phase_seconds: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class RoundPlan:
    """A round before it begins: a function of the config, the data, the round's number and the history."""

    cohort: tuple[Member, ...]
    expected: tuple[Expected, ...]
    orders: Orders
    wire: Wire
    rnd: Round


def plan_round(problem: Problem, data: Data, history: History, index: int) -> RoundPlan:
    """Who takes part in a round, with which block of which division, on which phase of the data."""
    config, algorithm = problem.config, problem.config.algorithm
    orders = Orders(index, phase_at(config.data.phases, index), history.edges)
    wire = problem.wire_at(history.edges)
    cohort = draw_cohort(
        config.seed,
        index,
        problem.clients,
        problem.cohort_size,
        problem.num_blocks if algorithm.blockwise else None,
        _dealing(problem, wire, history),
    )
    expected = tuple(_expected(problem, data, member, orders.phase) for member in cohort)
    steps = float(np.mean([item.steps for item in expected]))
    rnd = Round(index=index, clients=problem.clients, lr=algorithm.lr_at(index), steps=steps, phase=orders.phase)
    return RoundPlan(cohort, expected, orders, wire, rnd)


def _dealing(problem: Problem, wire: Wire, history: History) -> Dealing:
    assignment, layout = problem.config.cohort.assignment, wire.layout
    if assignment == "bandwidth" and problem.uplinks is not None:
        return by_bandwidth(problem.uplinks, [block.size for block in layout.blocks])
    return by_need(history.need(layout)) if assignment == "need" else evenly


def run_round(
    problem: Problem,
    data: Data,
    pool: Pool,
    server: Any,
    ledger: Ledger,
    history: History,
    index: int,
    trained: Tensor | None,
) -> RoundResult:
    """Compute round `index` and commit it to the ledger, wholly or (by raising) not at all."""
    config, algorithm = problem.config, problem.config.algorithm
    clock = _Clock()
    plan = plan_round(problem, data, history, index)
    cohort, wire = plan.cohort, plan.wire
    jobs = [Job(member.client, member.block, ledger[member.client]) for member in cohort]
    clock.lap("plan")
    down = algorithm.broadcast(server, plan.rnd)
    reducer = Reducer(algorithm, wire, down, plan.rnd.lr, trained, plan.expected, history.drifted is not None)
    outcomes: dict[int, Outcome] = {}
    arrays = {name: vector.numpy() for name, vector in down._asdict().items()}
    deadline = config.cohort.deadline_seconds
    clock.lap("broadcast")
    for outcome in pool.train(jobs, arrays, plan.orders, deadline):
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
    after = algorithm.server_rule(server, reduced.total, plan.rnd)
    after = average_buffers(server, after, reduced.total, trained)
    after = keep_uncovered(server, after, reduced.uncovered, problem.layout.size)
    _check_finite(wire.layout, algorithm.models(after), index)
    there = [member for member in cohort if (o := outcomes.get(member.client)) is not None and o.error is None]
    ledger.commit({member.client: outcomes[member.client].state for member in there})
    uploads = [wire.upload(member.block, outcomes[member.client].payload) for member in there]
    seen = history.measured(server.x, after.x, reduced.drift)
    clock.lap("reduce")
    return RoundResult(
        index=index,
        server=after,
        history=seen.divided(wire.layout, config.blocks, config.seed, index + 1),
        phase=plan.orders.phase,
        lr=plan.rnd.lr,
        participants=tuple(_participant(member, outcomes[member.client]) for member in there),
        dropped=tuple(_dropped(member, outcomes.get(member.client)) for member in cohort if member not in there),
        upload=total(uploads),
        download=total([wire.download] * len(cohort)),
        simulated_seconds=_simulated(problem, there, [upload.bytes for upload in uploads]),
        sampled=len(cohort),
        compression_ratio=_compression(wire, there, uploads),
        drift_diversity=reduced.drift_diversity,
        movement=block_norms(after.x - server.x, wire.layout),
        server_norms=server_norms(after, wire.layout),
        edges=plan.orders.edges,
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


def _simulated(problem: Problem, there: Sequence[Member], upload_bytes: Sequence[int]) -> float | None:
    links, rates = problem.config.cohort.links, problem.uplinks
    if links is None or rates is None:
        return None
    mine = [float(rates[member.client]) for member in there]
    return simulated_seconds(links, mine, upload_bytes, problem.wire.download.bytes)


def _compression(wire: Wire, there: Sequence[Member], uploads: Sequence[Traffic]) -> float:
    sent = sum(upload.bytes for upload in uploads)
    return sum(wire.uncoded_bytes(member.block) for member in there) / sent if sent else 1.0


def _participant(member: Member, outcome: Outcome) -> Participant:
    loss = outcome.loss if math.isfinite(outcome.loss) else None
    return Participant(client=member.client, block=member.block, seconds=outcome.seconds, loss=loss)


def _dropped(member: Member, outcome: Outcome | None) -> Dropped:
    reason = "deadline" if outcome is None else outcome.error or ""
    return Dropped(client=member.client, block=member.block, reason=reason)


def _check_finite(layout: BlockLayout, models: Sequence[Tensor], index: int) -> None:
    for model in models:
        if bool(torch.isfinite(model).all()):
            continue
        bad = next(b for b in layout.all_blocks if not bool(torch.isfinite(model[b.slice]).all()))
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
