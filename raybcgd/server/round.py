"""One round: plan, broadcast, train, aggregate, commit. The same in one process and on Ray."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from raybcgd.aggregation.reducer import Diverged
from raybcgd.algorithms.api import Algorithm, Round
from raybcgd.algorithms.contract import divergence_fix
from raybcgd.errors import DivergedError, RunError
from raybcgd.messages import FRESH, ClientTask, Outcome, Partial, RoundOrders
from raybcgd.model.blocks import BlockLayout
from raybcgd.plan.assignment import Assignment, by_bandwidth, by_need, evenly
from raybcgd.plan.cohort import Member, draw_cohort
from raybcgd.plan.history import History
from raybcgd.plan.links import simulated_seconds
from raybcgd.problem import Data, Problem
from raybcgd.record.ledger import Ledger
from raybcgd.record.rounds import Blocks, Dropped, Participant, Quality, RoundRecord, Timing, Traffic
from raybcgd.server.aggregation import Aggregate, Aggregator, Expected, average_buffers, keep_uncovered
from raybcgd.server.candidates import mean_losses, second_exchange
from raybcgd.server.norms import block_norms, proportional, server_norms
from raybcgd.server.pool import Pool, PoolReport, RoundWork
from raybcgd.server.rule import apply_server_rule
from raybcgd.wire.upload import Wire, total


@dataclass(frozen=True)
class RunState:
    """The state of a run between two rounds."""

    rounds: int
    """Finished rounds."""
    server: Any
    ledger: Ledger
    history: History
    upload_d_total: float = 0.0


@dataclass(frozen=True)
class RoundPlan:
    """The plan of a round: a function of the config, the data, the round's index and the history."""

    cohort: tuple[Member, ...]
    expected: tuple[Expected, ...]
    orders: RoundOrders
    wire: Wire
    rnd: Round


def plan_round(problem: Problem, data: Data, history: History, index: int) -> RoundPlan:
    """Choose the clients of a round, the block that each uploads, and the data phase."""
    config, algorithm = problem.config, problem.algorithm
    data_phase = 0 if config.data.phases is None else config.data.phases.at(index)
    orders = RoundOrders(
        index,
        algorithm.lr_at(index),
        data_phase,
        history.edges,
        cohort=problem.cohort_size,
        measure_drift=history.drifted is not None,
    )
    wire = problem.wire_at(history.edges)
    cohort = draw_cohort(
        config.seed,
        index,
        problem.clients,
        problem.cohort_size,
        problem.num_blocks if algorithm.blockwise else None,
        _assignment(problem, wire, history),
    )
    sizes = data.partitions[data_phase].sizes[[member.client for member in cohort]].tolist()
    num_steps = {size: config.local.num_steps(size) for size in set(sizes)}
    by_samples = config.cohort.weighting == "samples"
    expected = tuple(
        Expected(member, num_steps[size], size / problem.largest_client if by_samples else 1.0)
        for member, size in zip(cohort, sizes, strict=True)
    )
    steps = float(np.mean([item.steps for item in expected]))
    rnd = Round(
        index=index,
        clients=problem.clients,
        lr=orders.lr,
        steps=steps,
        data_phase=data_phase,
        blocks=problem.num_blocks,
        shared=wire.layout.shared.slice,
    )
    return RoundPlan(cohort, expected, orders, wire, rnd)


def _assignment(problem: Problem, wire: Wire, history: History) -> Assignment:
    assignment, layout = problem.config.cohort.assignment, wire.layout
    if assignment == "bandwidth" and problem.uplinks is not None:
        return by_bandwidth(problem.uplinks, [block.size for block in layout.blocks])
    return by_need(history.need(layout)) if assignment == "need" else evenly


@dataclass(frozen=True)
class _Trained:
    """The results of a round's training."""

    outcomes: Mapping[int, Outcome]
    """By client, for the whole cohort."""
    aggregate: Aggregate
    server: Any
    """The server's next state."""
    report: PoolReport
    candidates: int
    """Number of models whose loss the participants reported."""


def run_round(
    problem: Problem, data: Data, pool: Pool, state: RunState, meanwhile: Callable[[], None] = lambda: None
) -> tuple[RunState, RoundRecord]:
    """Run the next round and commit it to the ledger. Return the next state and the record without evaluation.

    `meanwhile` is called while the hosts train, if the engine can do that. An exception leaves the state unchanged.
    """
    algorithm, config, clock = problem.algorithm, problem.config, _Clock()
    plan = plan_round(problem, data, state.history, state.rounds)
    clock.lap("plan")
    down = algorithm.broadcast(state.server, plan.rnd)
    aggregator = Aggregator(problem, plan.wire, down, plan.orders, plan.expected)
    work = RoundWork(
        [ClientTask(*item.member, state.ledger[item.member.client], item.weight) for item in plan.expected],
        down._asdict(),
        plan.orders,
        config.cohort.deadline_seconds,
    )
    clock.lap("broadcast")
    inbox = _Inbox(problem, work, aggregator, clock, meanwhile)
    pool.train(work, inbox)
    clock.lap("train")
    outcomes = inbox.outcomes()
    aggregate = aggregator.result()
    server = apply_server_rule(algorithm, state.server, aggregate.total, plan.rnd)
    server = average_buffers(algorithm, state.server, server, aggregate.total, problem.trained_on(server.x.device))
    server = keep_uncovered(algorithm, state.server, server, aggregate.uncovered)
    server, candidates = _choose(problem, data, pool, plan, server, outcomes)
    _check_finite(plan.wire.layout, algorithm, server, state.rounds)
    history = state.history.measured(state.server.x, server.x, aggregate.drift, problem.trained_on(server.x.device))
    history = history.divided(plan.wire.layout, config.blocks, config.seed, state.rounds + 1)
    trained = _Trained(outcomes, aggregate, server, pool.report(), candidates)
    state.ledger.commit({client: outcome.state for client, outcome in outcomes.items()})
    record = _record(problem, plan, state, trained, clock)
    return RunState(state.rounds + 1, server, state.ledger, history, record.traffic.upload_d_total), record


class _Inbox:
    """Checks the results of a round's training and aggregates uploads as they arrive."""

    def __init__(
        self,
        problem: Problem,
        work: RoundWork,
        aggregator: Aggregator,
        clock: "_Clock",
        meanwhile: Callable[[], None],
    ) -> None:
        self._drops = problem.config.cohort.on_client_error == "drop"
        self.meanwhile = meanwhile
        self._work, self._aggregator, self._clock = work, aggregator, clock
        self._received: dict[int, Outcome] = {}

    def receive(self, outcomes: Sequence[Outcome], partial: Partial | None = None) -> None:
        self._clock.lap("train")
        for outcome in outcomes:
            if outcome.error is not None:
                self._check(outcome, outcome.error)
            self._received[outcome.client] = outcome if outcome.payload is None else outcome._replace(payload=None)
            try:
                self._aggregator.add(outcome)
            except Diverged as error:
                raise self._diverged(str(error)) from None
        if partial is not None:
            self._aggregator.merge(partial)
        self._clock.lap("aggregate")

    def _check(self, outcome: Outcome, error: str) -> None:
        """Raise the error of a client, unless it is dropped."""
        client, number = outcome.client, self._work.orders.round_index + 1
        if outcome.diverged:
            raise self._diverged(error)
        if outcome.breaks_contract:  # even with on_client_error = "drop"
            raise RunError(f"round {number} failed: {error}")
        if self._drops:
            return
        if "MemoryError" in error.partition(":")[0]:
            raise RunError(
                f"client {client} ran out of memory in round {number}: {error}; lower local.batch_size, local.stack or "
                "the number of hosts per machine"
            )
        raise RunError(
            f"client {client} failed in round {number}: {error}; fix it, or, if only some clients fail, set "
            'cohort.on_client_error = "drop" to continue without them'
        )

    def _diverged(self, cause: str) -> DivergedError:
        return DivergedError(f"round {self._work.orders.round_index + 1} diverged: {cause}")

    def outcomes(self) -> dict[int, Outcome]:
        """Return the outcomes by client, for the whole cohort. Clients whose upload did not arrive are late."""
        added = set(self._aggregator.clients)
        found = {}
        for task in self._work.tasks:
            outcome = self._received.get(task.client)
            if outcome is None or (outcome.error is None and task.client not in added):
                outcome = Outcome(task.client, None, FRESH, 0.0, math.nan, error="deadline")
            found[task.client] = outcome
        if all(outcome.error for outcome in found.values()):
            raise self._nobody(found)
        return found

    def _nobody(self, outcomes: Mapping[int, Outcome]) -> RunError:
        """Return the error of a round without any upload."""
        index, late = self._work.orders.round_index, [o for o in outcomes.values() if o.error == "deadline"]
        if len(late) == len(outcomes):
            limit = f"cohort.deadline_seconds = {self._work.deadline_seconds:g}"
            return RunError(f"all {len(late)} clients of round {index + 1} missed {limit}; raise it")
        first = next(o for o in outcomes.values() if o.error != "deadline")
        return RunError(
            f"all {len(outcomes)} clients of round {index + 1} failed or were late, for example client {first.client}: "
            f"{first.error}; fix the cause, then resume the run"
        )


def _choose(
    problem: Problem, data: Data, pool: Pool, plan: RoundPlan, server: Any, outcomes: Mapping[int, Outcome]
) -> tuple[Any, int]:
    """Have the participants evaluate the algorithm's candidates. Return the server's state and how many there were."""
    candidates = problem.algorithm.candidates(server, plan.rnd)
    participants = [item for item in plan.expected if not outcomes[item.member.client].error]
    if not candidates or not participants:
        return server, 0
    losses = mean_losses(problem, data, pool, candidates, participants, plan.rnd.data_phase)
    return problem.algorithm.choose(server, losses, plan.rnd), len(candidates)


def _record(problem: Problem, plan: RoundPlan, before: RunState, trained: _Trained, clock: "_Clock") -> RoundRecord:
    """Return the record of a round without its evaluation."""
    layout, server, hosts = plan.wire.layout, trained.server, trained.report.hosts
    trained_mask = problem.trained_on(server.x.device)
    answers = [(member, trained.outcomes[member.client]) for member in plan.cohort]
    present = [(member, outcome) for member, outcome in answers if not outcome.error]
    traffic, counts = _traffic(problem, plan, present, before.upload_d_total, trained.candidates)
    blocks = Blocks(
        **counts,
        **server_norms(problem.algorithm, server, layout, trained_mask),
        drift_diversity=trained.aggregate.drift_diversity,
        movement=block_norms(server.x - before.server.x, layout, trained_mask),
        edges=plan.orders.edges,
    )
    clock.lap("aggregate")
    broadcast, laps = trained.report.broadcast_seconds, clock.laps
    # The clock counts the pool's part of the broadcast as training.
    corrected = {"broadcast": laps["broadcast"] + broadcast, "train": max(0.0, laps["train"] - broadcast)}
    participants = tuple(_participant(member, outcome) for member, outcome in present)
    losses = [math.inf if participant.loss is None else participant.loss for participant in participants]
    return RoundRecord(
        round=before.rounds,
        lr=plan.orders.lr,
        data_phase=plan.orders.data_phase,
        participants=participants,
        dropped=tuple(Dropped(**member._asdict(), reason=lost.error) for member, lost in answers if lost.error),
        quality=Quality(train_loss=float(np.mean(losses)) if losses else None),
        traffic=traffic,
        blocks=blocks,
        timing=Timing(seconds=sum(laps.values()), stage_seconds={**laps, **corrected}),
        hosts=hosts.model_copy(update={"state_disk_bytes": before.ledger.stored_rows * problem.state_layout.row_bytes}),
    )


def _participant(member: Member, outcome: Outcome) -> Participant:
    loss = outcome.loss if math.isfinite(outcome.loss) else None
    return Participant(member.client, member.block, outcome.seconds, loss)


def _traffic(
    problem: Problem,
    plan: RoundPlan,
    present: Sequence[tuple[Member, Outcome]],
    upload_d_before: float,
    candidates: int,
) -> tuple[Traffic, dict[str, tuple[int, ...]]]:
    """Return the round's traffic, in total and per block."""
    wire, links = plan.wire, problem.config.cohort.links
    uploads = [outcome.traffic or wire.upload(member.block) for member, outcome in present]
    losses, models = second_exchange(wire, candidates, len(present))
    upload, download = total([*uploads, losses]), total([*[wire.download] * len(plan.cohort), models])
    upload_d = upload.bytes / (4 * len(plan.cohort) * problem.layout.size)
    uncoded = sum(n * wire.uncoded_bytes(block) for block, n in Counter(member.block for member, _ in present).items())
    simulated = None
    if links is not None and problem.uplinks is not None:
        rates = [float(problem.uplinks[member.client]) for member, _ in present]
        # The second exchange has the same size for all participants.
        uploaded = [one.bytes + losses.bytes // len(present) for one in uploads]
        downloaded = wire.download.bytes + (models.bytes // len(present) if present else 0)
        simulated = simulated_seconds(links, rates, uploaded, downloaded)
    traffic = Traffic(
        upload_floats=upload.floats,
        upload_bytes=upload.bytes,
        upload_d=upload_d,
        upload_d_total=upload_d_before + upload_d,
        download_floats=download.floats,
        download_bytes=download.bytes,
        compression_ratio=uncoded / upload.bytes if upload.bytes else 1.0,
        simulated_seconds=simulated,
    )
    return traffic, {
        "upload_floats": upload.by_block,
        "upload_bytes": proportional(upload.bytes, upload.by_block),
        "download_floats": download.by_block,
    }


def _check_finite(layout: BlockLayout, algorithm: Algorithm, server: Any, index: int) -> None:
    models = algorithm.models(server)
    finite = [bool(torch.isfinite(model).all()) for model in models]  # one transfer per model on an accelerator
    if all(finite):
        return
    for model, block in product(models, layout.all_blocks):
        if not bool(torch.isfinite(model[block.slice]).all()):
            found = f"block {block.name} of the model is not finite, but all uploads were"
            raise DivergedError(f"round {index + 1} diverged: {found}; {divergence_fix(algorithm, 'server_rule')}")


class _Clock:
    """Seconds per stage of a round."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to `stage`."""
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._last
        self._last = now
