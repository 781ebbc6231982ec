"""Upload codecs: how the values of a declared field become bytes."""

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from raybcgd.section import Section


class Codec(Section):
    """The base of every codec. The same codec serves every vector field of an upload."""

    remembers: ClassVar[bool] = False
    """Whether a client keeps what was not sent and adds it to its next upload (error feedback)."""

    def encode(self, values: Tensor, rng: np.random.Generator) -> np.ndarray:
        """The bytes of some values."""
        raise NotImplementedError

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> Tensor:
        """The values that the bytes stand for."""
        raise NotImplementedError

    def size(self, length: int, dtype: torch.dtype) -> int:
        """The bytes that `length` values take."""
        raise NotImplementedError


class Raw(Codec):
    """Every value as it is."""

    codec: Literal["raw"] = "raw"

    def encode(self, values: Tensor, rng: np.random.Generator) -> np.ndarray:
        return values.contiguous().numpy().view(np.uint8)

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(payload.view(numpy_type(dtype)))

    def size(self, length: int, dtype: torch.dtype) -> int:
        return length * dtype.itemsize


def numpy_type(dtype: torch.dtype) -> Any:
    """The numpy type of a floating torch type."""
    return np.float64 if dtype == torch.float64 else np.float32
