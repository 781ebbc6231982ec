"""Norms of the server's vectors, block by block: one pass over each vector a round."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybcgd.model.blocks import BlockLayout


def block_norms(vector: Tensor, layout: BlockLayout) -> tuple[float, ...]:
    """The Euclidean norm of every block of a vector, the shared one last."""
    blocks = (*layout.blocks, layout.shared)
    return tuple(float(torch.linalg.vector_norm(vector[block.slice])) for block in blocks)


def server_norms(server: Any, layout: BlockLayout) -> dict[str, tuple[float, ...]]:
    """The same of every vector that the server keeps beside the model, by its letter."""
    # What is not of the model's size, such as a model for every data phase, has no blocks.
    vectors = {name: vector for name, vector in server._asdict().items() if name != "x" and vector.dim() == 1}
    return {name: block_norms(v, layout) for name, v in vectors.items() if v.numel() == layout.size}


def shared_out(total: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """A whole number divided in proportion to weights, into whole numbers whose sum it is."""
    ends = np.cumsum((0, *weights))
    if ends[-1] == 0:
        return (0,) * len(weights)
    return tuple(np.diff(np.round(ends * (total / ends[-1])).astype(np.int64)).tolist())
