"""One round: plan, broadcast, train, aggregate, commit. The same in one process and on Ray."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybcgd.algorithms.api import Round
from raybcgd.errors import RunError
from raybcgd.messages import ClientTask, Outcome, RoundOrders
from raybcgd.model.blocks import BlockLayout
from raybcgd.plan.assignment import Assignment, by_bandwidth, by_need, evenly
from raybcgd.plan.cohort import Member, draw_cohort
from raybcgd.plan.history import History
from raybcgd.plan.links import simulated_seconds
from raybcgd.problem import Data, Problem
from raybcgd.record.ledger import Ledger
from raybcgd.record.rounds import Blocks, Dropped, Participant, Traffic
from raybcgd.server.aggregation import Aggregate, Aggregator, Expected, average_buffers, keep_uncovered
from raybcgd.server.pool import Pool, RoundWork
from raybcgd.server.norms import block_norms, proportional, server_norms
from raybcgd.wire.upload import Wire, total


@dataclass(frozen=True)
class RunState:
    """Where a run stands between two rounds."""

    rounds: int
    """Finished rounds."""
    server: Any
    ledger: Ledger
    history: History
    upload_d_total: float = 0.0


@dataclass(frozen=True)
class RoundResult:
    """A committed round: the next state, and its part of the record."""

    state: RunState
    orders: RoundOrders
    participants: tuple[Participant, ...]
    dropped: tuple[Dropped, ...]
    traffic: Traffic
    blocks: Blocks
    stage_seconds: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class RoundPlan:
    """A round before it starts: a function of the config, the data, the round's index and the history."""

    cohort: tuple[Member, ...]
    expected: tuple[Expected, ...]
    orders: RoundOrders
    wire: Wire
    rnd: Round


def plan_round(problem: Problem, data: Data, history: History, index: int) -> RoundPlan:
    """Choose the clients of a round, the block that each uploads, and the data phase."""
    config, algorithm = problem.config, problem.algorithm
    data_phase = 0 if config.data.phases is None else config.data.phases.at(index)
    orders = RoundOrders(index, algorithm.lr_at(index), data_phase, history.edges)
    wire = problem.wire_at(history.edges)
    cohort = draw_cohort(
        config.seed,
        index,
        problem.clients,
        problem.cohort_size,
        problem.num_blocks if algorithm.blockwise else None,
        _assignment(problem, wire, history),
    )
    expected = tuple(_expected(problem, data, member, data_phase) for member in cohort)
    steps = float(np.mean([item.steps for item in expected]))
    rnd = Round(index=index, clients=problem.clients, lr=orders.lr, steps=steps, data_phase=data_phase)
    return RoundPlan(cohort, expected, orders, wire, rnd)


def _assignment(problem: Problem, wire: Wire, history: History) -> Assignment:
    assignment, layout = problem.config.cohort.assignment, wire.layout
    if assignment == "bandwidth" and problem.uplinks is not None:
        return by_bandwidth(problem.uplinks, [block.size for block in layout.blocks])
    return by_need(history.need(layout)) if assignment == "need" else evenly


def _expected(problem: Problem, data: Data, member: Member, data_phase: int) -> Expected:
    samples = int(data.partitions[data_phase].sizes[member.client])
    weight = float(samples) if problem.config.cohort.weighting == "samples" else 1.0
    return Expected(member, problem.config.local.num_steps(samples), weight)


def run_round(problem: Problem, data: Data, pool: Pool, state: RunState) -> RoundResult:
    """Compute the next round and commit it to the ledger. An exception leaves the state unchanged."""
    algorithm, clock = problem.algorithm, _Clock()
    plan = plan_round(problem, data, state.history, state.rounds)
    clock.lap("plan")
    down = algorithm.broadcast(state.server, plan.rnd)
    aggregator = Aggregator(problem, plan.wire, down, plan.rnd.lr, plan.expected, state.history.drifted is not None)
    work = RoundWork(
        [ClientTask(member.client, member.block, state.ledger[member.client]) for member in plan.cohort],
        {name: vector.numpy() for name, vector in down._asdict().items()},
        plan.orders,
        problem.config.cohort.deadline_seconds,
    )
    clock.lap("broadcast")
    outcomes = _train(problem, pool, work, aggregator, clock)
    aggregate = aggregator.result()
    after = algorithm.server_rule(state.server, aggregate.total, plan.rnd)
    after = average_buffers(algorithm, state.server, after, aggregate.total, problem.trained)
    after = keep_uncovered(algorithm, state.server, after, aggregate.uncovered)
    _check_finite(plan.wire.layout, algorithm.models(after), state.rounds)
    return _commit(problem, plan, state, after, outcomes, aggregate, clock)


def _train(
    problem: Problem, pool: Pool, work: RoundWork, aggregator: Aggregator, clock: "_Clock"
) -> dict[int, Outcome]:
    """Train the cohort and aggregate uploads as they arrive. Return the outcomes by client."""
    outcomes: dict[int, Outcome] = {}
    index = work.orders.round_index
    for outcome in pool.train(work):
        clock.lap("train")
        if outcome.error is not None and problem.config.cohort.on_client_error == "stop":
            raise RunError(
                f"client {outcome.client} failed in round {index}: {outcome.error}; fix it, or set "
                'cohort.on_client_error = "drop" to continue without such clients'
            )
        outcomes[outcome.client] = outcome
        try:
            aggregator.add(outcome.client, outcome.payload)
        except RunError as error:
            raise RunError(f"round {index} diverged: {error}") from None
        clock.lap("reduce")
    clock.lap("train")
    for task in work.tasks:
        if task.client not in outcomes:
            aggregator.add(task.client, None)
    return outcomes


def _commit(
    problem: Problem,
    plan: RoundPlan,
    state: RunState,
    after: Any,
    outcomes: dict[int, Outcome],
    aggregate: Aggregate,
    clock: "_Clock",
) -> RoundResult:
    cohort, wire, config = plan.cohort, plan.wire, problem.config
    present = [m for m in cohort if (o := outcomes.get(m.client)) is not None and o.error is None]
    state.ledger.commit({member.client: outcomes[member.client].state for member in present})
    traffic, blocks = _traffic(problem, plan, present, outcomes, state.upload_d_total)
    index, x, x_before = state.rounds, after.x, state.server.x
    history = state.history.measured(x_before, x, aggregate.drift)
    history = history.divided(wire.layout, config.blocks, config.seed, index + 1)
    norms = server_norms(problem.algorithm, after, wire.layout)
    clock.lap("reduce")
    return RoundResult(
        state=RunState(index + 1, after, state.ledger, history, traffic.upload_d_total),
        orders=plan.orders,
        participants=tuple(_participant(member, outcomes[member.client]) for member in present),
        dropped=tuple(_dropped(member, outcomes.get(member.client)) for member in cohort if member not in present),
        traffic=traffic,
        blocks=Blocks(
            **blocks,
            drift_diversity=aggregate.drift_diversity,
            movement=block_norms(x - x_before, wire.layout),
            edges=plan.orders.edges,
            **norms,
        ),
        stage_seconds=clock.laps,
        seconds=clock.total(),
    )


def _traffic(
    problem: Problem, plan: RoundPlan, present: Sequence[Member], outcomes: dict[int, Outcome], upload_d_before: float
) -> tuple[Traffic, dict[str, tuple[int, ...]]]:
    """Count what was sent: in all, and per block."""
    wire = plan.wire
    uploads = [wire.upload(member.block, outcomes[member.client].payload) for member in present]
    upload, download = total(uploads), total([wire.download] * len(plan.cohort))
    upload_d = upload.floats / (max(1, len(present)) * problem.layout.size)
    uncoded = sum(wire.uncoded_bytes(member.block) for member in present)
    traffic = Traffic(
        upload_floats=upload.floats,
        upload_bytes=upload.bytes,
        upload_d=upload_d,
        upload_d_total=upload_d_before + upload_d,
        download_floats=download.floats,
        download_bytes=download.bytes,
        compression_ratio=uncoded / upload.bytes if upload.bytes else 1.0,
        simulated_seconds=_simulated(problem, present, [one.bytes for one in uploads]),
    )
    return traffic, {
        "upload_floats": upload.by_block,
        "upload_bytes": proportional(upload.bytes, upload.by_block),
        "download_floats": download.by_block,
    }


def _simulated(problem: Problem, present: Sequence[Member], upload_bytes: Sequence[int]) -> float | None:
    links, rates = problem.config.cohort.links, problem.uplinks
    if links is None or rates is None:
        return None
    mine = [float(rates[member.client]) for member in present]
    return simulated_seconds(links, mine, upload_bytes, problem.wire.download.bytes)


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
    """Seconds per stage of a round."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._started = self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to `stage`."""
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._last
        self._last = now

    def total(self) -> float:
        return time.perf_counter() - self._started
