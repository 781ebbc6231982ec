"""Norms of the server's vectors per block."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybcgd.algorithms.api import Algorithm
from raybcgd.algorithms.contract import ControlVariate, Kind, Mark, Momentum, declared, marked
from raybcgd.model.blocks import BlockLayout


def block_norms(vector: Tensor, layout: BlockLayout) -> tuple[float, ...]:
    """Return the Euclidean norm of every block of a vector, the shared block last."""
    blocks = (*layout.blocks, layout.shared)
    return tuple(float(torch.linalg.vector_norm(vector[block.slice])) for block in blocks)


def server_norms(algorithm: Algorithm, server: Any, layout: BlockLayout) -> dict[str, Any]:
    """Return the block norms of the server's vectors, as fields of the record's `blocks`."""
    names = [field.name for field in declared(algorithm.Server) if field.kind is Kind.WHOLE and field.name != "x"]
    norms = {name: block_norms(getattr(server, name), layout) for name in names}

    def of(mark: Mark) -> tuple[float, ...] | None:
        return next((norms[name] for name in marked(algorithm.Server, mark)), None)

    return {"server_norms": norms, "momentum": of(Momentum), "control_variate": of(ControlVariate)}


def proportional(total: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Divide an integer in proportion to weights, into integers that sum to it."""
    ends = np.cumsum((0, *weights))
    if ends[-1] == 0:
        return (0,) * len(weights)
    return tuple(np.diff(np.round(ends * (total / ends[-1])).astype(np.int64)).tolist())
