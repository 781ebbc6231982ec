"""Aggregated uploads, compared with their definitions."""

from typing import Any

import numpy as np
import pytest
import torch

from raybcgd.messages import FRESH, Outcome, RoundOrders
from raybcgd.plan.cohort import Member
from raybcgd.problem import prepare
from raybcgd.server.aggregation import Aggregate, Aggregator, Expected
from tests.conftest import small


def aggregate(weights: list[float], measure_drift: bool) -> tuple[Any, list[tuple[int, torch.Tensor]], Aggregate]:
    """Aggregate random displacements of six clients, two per block."""
    weighting = "uniform" if set(weights) == {1.0} else "samples"
    problem, _ = prepare(small(algorithm={"name": "fedbcgd"}, cohort={"weighting": weighting}))
    wire, size = problem.wire, problem.layout.size
    torch.manual_seed(0)
    members = [Member(k, k % 3) for k in range(6)]
    deltas = [torch.randn(size) for _ in members]
    expected = [Expected(member, 5, weight) for member, weight in zip(members, weights, strict=True)]
    algorithm = problem.algorithm
    orders = RoundOrders(0, lr=0.1, cohort=6, measure_drift=measure_drift)
    aggregator = Aggregator(problem, wire, algorithm.Down(x=torch.zeros(size)), orders, expected)
    rng = np.random.default_rng(0)
    for member, delta in zip(members, deltas, strict=True):
        values = wire.select(algorithm.upload_type(delta=delta), member.block)
        aggregator.add(Outcome(member.client, wire.encode(values, rng), FRESH, 1.0, 1.0))
    return (
        problem.layout,
        [(member.block or 0, delta) for member, delta in zip(members, deltas, strict=True)],
        aggregator.result(),
    )


@pytest.mark.parametrize("weights", [[1.0] * 6, [0.5, 0.15, 0.05, 0.35, 1.0, 0.1]], ids=["uniform", "samples"])
def test_drift_diversity_is_unweighted_and_means_are_weighted(weights: list[float]) -> None:
    layout, sent, result = aggregate(weights, measure_drift=False)
    for number, part in enumerate((*layout.blocks, layout.shared)):
        mine = [delta[part.slice].double() for block, delta in sent if number in (block, 3)]
        assert len(mine) == (6 if number == 3 else 2)
        definition = sum(m.square().sum() for m in mine) / torch.stack(mine).sum(0).square().sum()
        assert result.drift_diversity[number] == pytest.approx(float(definition), rel=1e-5)
        chosen = [w for w, (block, _) in zip(weights, sent, strict=True) if number in (block, 3)]
        mean = sum(w * m for w, m in zip(chosen, mine, strict=True)) / sum(chosen)
        torch.testing.assert_close(result.total.delta[part.slice].double(), mean, rtol=1e-5, atol=1e-5)


def test_drift_is_the_mean_square_over_the_clients_that_sent_a_coordinate() -> None:
    layout, sent, result = aggregate([1.0, 0.3, 0.3, 0.3, 0.3, 0.3], measure_drift=True)
    assert result.drift is not None
    for number, part in enumerate((*layout.blocks, layout.shared)):
        mine = torch.stack([delta[part.slice] for block, delta in sent if number in (block, 3)])
        torch.testing.assert_close(result.drift[part.slice], mine.square().mean(0))
