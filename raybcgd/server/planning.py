"""The plan of a round: its clients, their blocks, and the orders for the hosts."""

from dataclasses import dataclass

import numpy as np

from raybcgd.algorithms.api import Round
from raybcgd.messages import RoundOrders
from raybcgd.plan.assignment import Assignment, by_bandwidth, by_need, evenly
from raybcgd.plan.cohort import Member, draw_cohort
from raybcgd.plan.history import History
from raybcgd.problem import Data, Problem
from raybcgd.server.aggregation import Expected
from raybcgd.wire.upload import Wire


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


def plan_ahead(problem: Problem, data: Data, history: History, index: int) -> RoundPlan | None:
    """Return the plan of a round before its predecessor has ended, or None if it depends on that round's results."""
    if problem.config.blocks.redivide_every is not None or history.measures:
        return None
    return plan_round(problem, data, history, index)
