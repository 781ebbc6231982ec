"""The base class of upload codecs, and the codecs without settings."""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from raybcgd.wire.settings import CODECS, CodecConfig


class Codec(CodecConfig):
    """Base class of all codecs: converts the values of an upload to bytes and back.

    A codec encodes each vector field of an upload separately. It sees only the coordinates that are sent: for a block
    method, the client's block followed by the shared block. Scalars are always sent raw.

    To write your own codec, subclass this class and set `wire.codec = "package.module:Name"`. Declare its settings as
    pydantic fields, and implement `encode`, `decode` and `size`. Override `draws` if encoding is random, `remembers`
    for error feedback, and `values` and `positions` if only some of the values are sent.
    """

    draws: ClassVar[bool] = False
    """Whether `encode` uses its random generator."""
    lossless: ClassVar[bool] = False
    """Whether decoding always returns the encoded values. Then a host that adds up uploads does not encode them."""

    @property
    def codec(self) -> str:
        """Name of the codec in a config."""
        return CODECS.name_of(type(self))

    @property
    def remembers(self) -> bool:
        """Whether clients keep unsent values and add them to a later upload (error feedback)."""
        return False

    def encode(self, values: Tensor, rng: np.random.Generator) -> np.ndarray:
        """Return the payload: a uint8 array of exactly `size` bytes. `values` is a vector on the CPU."""
        raise NotImplementedError

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> Tensor:
        """Return all `length` values, with zeros for those not sent. The payload may be unaligned: see `read`."""
        raise NotImplementedError

    def size(self, length: int, dtype: torch.dtype) -> int:
        """Return the payload size in bytes for `length` values of this dtype. It must not depend on the values."""
        raise NotImplementedError

    def values(self, length: int) -> int:
        """Return how many of `length` values are sent, at any precision. Default: all."""
        return length

    def positions(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> np.ndarray | None:
        """Return the indices of the values that were sent. None, the default: all."""
        return None


class Raw(Codec):
    """All values, unchanged."""

    lossless: ClassVar[bool] = True

    def encode(self, values: Tensor, rng: np.random.Generator) -> np.ndarray:
        return values.contiguous().numpy().view(np.uint8)

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> Tensor:
        return read(payload, dtype)

    def size(self, length: int, dtype: torch.dtype) -> int:
        return length * dtype.itemsize


class BFloat16(Codec):
    """All values, rounded to the nearest bfloat16: 2 bytes per value."""

    def encode(self, values: Tensor, rng: np.random.Generator) -> np.ndarray:
        return values.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint8)

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> Tensor:
        return read(payload, torch.bfloat16).to(dtype)

    def size(self, length: int, dtype: torch.dtype) -> int:
        return 2 * length


def read(payload: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Return the values stored in a payload, copied only if it is unaligned."""
    words = np.require(payload.view(f"i{dtype.itemsize}"), requirements="A")
    return torch.from_numpy(words).view(dtype)
