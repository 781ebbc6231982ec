"""Upload codecs: how the values of a declared field become bytes. `[wire] codec` names one."""

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from raybcgd.section import Section


class Codec(Section):
    """The base of every codec. The same codec serves every vector field of an upload; scalars go as they are.

    A codec acts on one field at a time, on the coordinates that travel: for a block method, on the client's block and
    the shared one side by side.
    """

    codec: str
    """How an upload becomes bytes: raw, bf16, qsgd or topk; raw unless given."""

    draws: ClassVar[bool] = False
    """Whether encoding draws random numbers."""

    @property
    def remembers(self) -> bool:
        """Whether a client keeps what was not sent and adds it to its next upload (error feedback)."""
        return False

    def encode(self, values: Tensor, rng: np.random.Generator) -> np.ndarray:
        """The bytes of some values."""
        raise NotImplementedError

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> Tensor:
        """The values that the bytes stand for."""
        raise NotImplementedError

    def size(self, length: int, dtype: torch.dtype) -> int:
        """The bytes that `length` values take: values, indices, norms, everything."""
        raise NotImplementedError

    def values(self, length: int) -> int:
        """How many of `length` values are sent, in whatever precision: the "floats" of an upload."""
        return length

    def positions(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> np.ndarray | None:
        """Which of `length` values were sent; None for all."""
        return None


class Raw(Codec):
    """Every value as it is."""

    codec: Literal["raw"] = "raw"

    def encode(self, values: Tensor, rng: np.random.Generator) -> np.ndarray:
        return values.contiguous().numpy().view(np.uint8)

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> Tensor:
        return read(payload, dtype)

    def size(self, length: int, dtype: torch.dtype) -> int:
        return length * dtype.itemsize


class BFloat16(Codec):
    """Every value rounded to the nearest bfloat16: 2 bytes."""

    codec: Literal["bf16"] = "bf16"

    def encode(self, values: Tensor, rng: np.random.Generator) -> np.ndarray:
        return values.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint8)

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> Tensor:
        halves = np.require(payload.view(np.int16), requirements="A")
        return torch.from_numpy(halves).view(torch.bfloat16).to(dtype)

    def size(self, length: int, dtype: torch.dtype) -> int:
        return 2 * length


def read(payload: np.ndarray, dtype: torch.dtype) -> Tensor:
    """The values of a run of bytes, copied only where a field before it has left them unaligned."""
    return torch.from_numpy(np.require(payload.view(numpy_type(dtype)), requirements="A"))


def numpy_type(dtype: torch.dtype) -> Any:
    """The numpy type of a floating torch type."""
    return np.float64 if dtype == torch.float64 else np.float32
