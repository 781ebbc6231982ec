"""Norms and traffic per block."""

from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import torch

from raybcgd.algorithms.contract import ControlVariate, Momentum, PerPhase, PhaseCounts, Whole
from raybcgd.model.blocks import Block, BlockLayout
from raybcgd.server.norms import block_norms, proportional, server_norms

LAYOUT = BlockLayout((), (Block("0", 0, 2, ()), Block("1", 2, 3, ())), Block("shared", 3, 4, ()))


class Server(NamedTuple):
    x: Whole
    predictors: PerPhase
    seen: PhaseCounts
    v: Annotated[Whole, Momentum]
    c: Annotated[Whole, ControlVariate]


def test_norms_are_per_block() -> None:
    assert block_norms(torch.tensor([3.0, 4.0, 2.0, 0.0]), LAYOUT) == (5, 2, 0)


def test_marks_select_the_norms_of_momentum_and_control_variate() -> None:
    server = Server(
        torch.zeros(4), torch.zeros(2, 4), torch.zeros(2), torch.tensor([3.0, 4.0, 2.0, 0.0]), 2 * torch.ones(4)
    )
    algorithm: Any = SimpleNamespace(Server=Server)
    norms = server_norms(algorithm, server, LAYOUT)
    assert set(norms["server_norms"]) == {"v", "c"}
    assert norms["momentum"] == norms["server_norms"]["v"] == (5, 2, 0)
    assert norms["control_variate"] == norms["server_norms"]["c"]


def test_bytes_per_block_are_integers_that_sum_to_the_total() -> None:
    assert proportional(10, (1, 1, 1)) == (3, 4, 3)
    assert proportional(12, (1, 2, 0)) == (4, 8, 0)
    assert proportional(5, (0, 0)) == (0, 0)
