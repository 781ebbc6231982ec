"""What the server adds up, against the definitions."""

from typing import Any

import numpy as np
import pytest
import torch

from raybcgd.plan.cohort import Member
from raybcgd.problem import prepare
from raybcgd.server.aggregation import Expected, Reduced, Reducer
from tests.conftest import small


def reduced(weights: list[float], **reducer: Any) -> tuple[Any, list[tuple[int, torch.Tensor]], Reduced]:
    """Six clients of three blocks with random displacements, added up."""
    problem, _ = prepare(small(algorithm={"name": "fedbcgd"}))
    wire, size = problem.wire, problem.layout.size
    torch.manual_seed(0)
    members = [Member(k, k % 3) for k in range(6)]
    deltas = [torch.randn(size) for _ in members]
    expected = [Expected(member, 5, weight) for member, weight in zip(members, weights, strict=True)]
    algorithm = problem.config.algorithm
    adder = Reducer(algorithm, wire, algorithm.Down(x=torch.zeros(size)), 0.1, None, expected, **reducer)
    rng = np.random.default_rng(0)
    for member, delta in zip(members, deltas, strict=True):
        values = wire.select(algorithm.upload_type(delta=delta), member.block)
        adder.add(member.client, wire.encode(values, rng))
    return (
        problem.layout,
        [(member.block or 0, delta) for member, delta in zip(members, deltas, strict=True)],
        adder.result(),
    )


@pytest.mark.parametrize("weights", [[1.0] * 6, [10.0, 3.0, 1.0, 7.0, 20.0, 2.0]], ids=["uniform", "samples"])
def test_drift_diversity_is_unweighted_whatever_the_mean_is(weights: list[float]) -> None:
    layout, sent, result = reduced(weights)
    for number, part in enumerate((*layout.blocks, layout.shared)):
        mine = [delta[part.slice].double() for block, delta in sent if number in (block, 3)]
        assert len(mine) == (6 if number == 3 else 2)
        definition = sum(m.square().sum() for m in mine) / torch.stack(mine).sum(0).square().sum()
        assert result.drift_diversity[number] == pytest.approx(float(definition), rel=1e-5)
        chosen = [w for w, (block, _) in zip(weights, sent, strict=True) if number in (block, 3)]
        mean = sum(w * m for w, m in zip(chosen, mine, strict=True)) / sum(chosen)
        torch.testing.assert_close(result.total.delta[part.slice].double(), mean, rtol=1e-5, atol=1e-5)


def test_drift_is_the_mean_square_over_the_clients_that_sent_a_coordinate() -> None:
    layout, sent, result = reduced([3.0, 1.0, 1.0, 1.0, 1.0, 1.0], measure_drift=True)
    assert result.drift is not None
    for number, part in enumerate((*layout.blocks, layout.shared)):
        mine = torch.stack([delta[part.slice] for block, delta in sent if number in (block, 3)])
        torch.testing.assert_close(result.drift[part.slice], mine.square().mean(0))
