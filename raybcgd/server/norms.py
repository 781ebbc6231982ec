"""Norms of the server's vectors per block."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybcgd.algorithms.api import Algorithm
from raybcgd.algorithms.contract import ControlVariate, Kind, Momentum, declared, marked
from raybcgd.model.blocks import BlockLayout


def block_norms(vector: Tensor, layout: BlockLayout, trained: Tensor | None = None) -> tuple[float, ...]:
    """Return the Euclidean norm of every block of a vector, the shared block last.

    `trained` is 0 on buffers, which do not count: their scale is unrelated to that of the parameters.
    """
    vector = vector if trained is None else vector * trained
    blocks = (*layout.blocks, layout.shared)
    # In float64, because the squares of large float32 values overflow. Accelerators may not have it.
    wide = torch.float64 if vector.device.type in ("cpu", "cuda") else vector.dtype
    norms = torch.stack([torch.linalg.vector_norm(vector[block.slice], dtype=wide) for block in blocks])
    return tuple(norms.tolist())  # one transfer if they are on an accelerator


def server_norms(
    algorithm: Algorithm, server: Any, layout: BlockLayout, trained: Tensor | None = None
) -> dict[str, Any]:
    """Return the norms per block of the server's vectors, as fields of the record's `blocks`."""
    names = [field.name for field in declared(algorithm.Server) if field.kind is Kind.WHOLE and field.name != "x"]
    norms = {name: block_norms(getattr(server, name), layout, trained) for name in names}
    marks = {"momentum": Momentum, "control_variate": ControlVariate}
    special = {key: norms[name] for key, mark in marks.items() for name in marked(algorithm.Server, mark)}
    return {"server_norms": norms, **special}


def proportional(total: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Split an integer in proportion to weights. The parts are integers that sum to it."""
    ends = np.cumsum((0, *weights))
    return tuple(np.diff(np.round(ends * (total / max(ends[-1], 1))).astype(np.int64)).tolist())
