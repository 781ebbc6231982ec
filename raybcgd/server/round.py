"""One round: plan, broadcast, train, aggregate, commit. The same in one process and on Ray."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from raybcgd.aggregation.reducer import Diverged
from raybcgd.algorithms.api import Algorithm
from raybcgd.algorithms.contract import divergence_fix
from raybcgd.errors import DivergedError, RunError
from raybcgd.messages import FRESH, ClientTask, Outcome, Partial
from raybcgd.model.blocks import BlockLayout
from raybcgd.plan.history import History
from raybcgd.problem import Data, Problem
from raybcgd.record.ledger import Ledger
from raybcgd.server.aggregation import Aggregator, average_buffers, keep_uncovered
from raybcgd.server.candidates import mean_losses
from raybcgd.server.planning import RoundPlan, plan_round
from raybcgd.server.pool import Pool, RoundWork
from raybcgd.server.recording import FinishedRound
from raybcgd.server.rule import apply_server_rule


@dataclass(frozen=True)
class RunState:
    """The state of a run between two rounds."""

    rounds: int
    """Finished rounds."""
    server: Any
    ledger: Ledger
    history: History
    upload_d_total: float = 0.0


def run_round(
    problem: Problem,
    data: Data,
    pool: Pool,
    state: RunState,
    meanwhile: Callable[[], None] = lambda: None,
    plan: RoundPlan | None = None,
) -> tuple[RunState, FinishedRound]:
    """Run the next round and commit it to the ledger. Return the next state, and what the round's record needs.

    `meanwhile` is called while the hosts train, if the engine can do that. An exception leaves the state unchanged.
    `plan` is the round's plan, if it was made in advance.
    """
    algorithm, config, clock = problem.algorithm, problem.config, _Clock()
    plan = plan or plan_round(problem, data, state.history, state.rounds)
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
    state.ledger.commit({client: outcome.state for client, outcome in outcomes.items()})
    report = pool.report()
    clock.lap("aggregate")
    finished = FinishedRound(
        problem,
        plan,
        outcomes,
        aggregate.drift_diversity,
        models=(state.server.x, server),
        upload_d_before=state.upload_d_total,
        candidates=candidates,
        report=report,
        state_disk_bytes=state.ledger.stored_rows * problem.state_layout.row_bytes,
        laps=clock.laps,
    )
    next_state = RunState(state.rounds + 1, server, state.ledger, history, finished.traffic.upload_d_total)
    return next_state, finished


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
            self._check(outcome)
            self._received[outcome.client] = outcome._replace(payload=None)
            try:
                self._aggregator.add(outcome)
            except Diverged as error:
                raise self._diverged(str(error)) from None
        if partial is not None:
            self._aggregator.merge(partial)
        self._clock.lap("aggregate")

    def _check(self, outcome: Outcome) -> None:
        if outcome.diverged and outcome.error is not None:
            raise self._diverged(outcome.error)
        if outcome.breaks_contract and outcome.error is not None:  # even with on_client_error = "drop"
            raise RunError(f"round {self._work.orders.round_index + 1} failed: {outcome.error}")
        if outcome.error is not None and not self._drops and "MemoryError" in outcome.error.partition(":")[0]:
            raise RunError(
                f"client {outcome.client} ran out of memory in round {self._work.orders.round_index + 1}: "
                f"{outcome.error}; lower local.batch_size, local.stack or the number of hosts per machine"
            )
        if outcome.error is not None and not self._drops:
            raise RunError(
                f"client {outcome.client} failed in round {self._work.orders.round_index + 1}: {outcome.error}; fix "
                'it, or, if only some clients fail, set cohort.on_client_error = "drop" to continue without them'
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
