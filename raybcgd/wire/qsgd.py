"""QSGD (Alistarh et al., NeurIPS 2017): values rounded at random to a few levels of their bucket's norm, unbiased."""

from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from raybcgd.wire.bits import pack, packed_bytes, unpack
from raybcgd.wire.codecs import Codec, numpy_type


class QSGD(Codec):
    """QSGD (Alistarh et al., NeurIPS 2017): values rounded at random to a few levels of their bucket's norm, unbiased.

    n values take one norm a bucket, in the model's own type, and ceil(log2(2 levels + 1)) bits a value for sign and
    level: with float32, 4 ceil(n / bucket) + ceil(n bits / 8) bytes. FedAvg under this codec is FedPAQ.
    """

    codec: Literal["qsgd"] = "qsgd"
    draws: ClassVar[bool] = True
    levels: Annotated[int, Field(ge=1, le=2**15)] = 127
    """s, the levels of a magnitude between 0 and the norm; 127 is 8 bits a value, 7 is 4, 1 is 2."""
    bucket: Annotated[int, Field(ge=1)] = 512
    """Values that share a norm."""

    @property
    def bits(self) -> int:
        """Bits of a value."""
        return (2 * self.levels).bit_length()

    def quantise(self, values: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The norm of every bucket, and every value's signed level: an integer from -s to s."""
        s, starts = self.levels, np.arange(0, len(values), self.bucket)
        exact = values.astype(np.float64)
        if len(starts) == 0:
            return values[:0], exact.astype(np.int64)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite shows in the norm
            norms = np.sqrt(np.add.reduceat(exact**2, starts)).astype(values.dtype)
            norm = np.repeat(norms, self.bucket)[: len(values)].astype(np.float64)
            scaled = np.divide(s * np.abs(exact), norm, out=np.zeros_like(exact), where=norm > 0)
        scaled = np.nan_to_num(scaled, nan=0.0, posinf=0.0)
        low = np.floor(scaled)
        # The norm is rounded too, so that a value may exceed it by a last bit.
        level = np.minimum(low + (rng.random(len(values)) < scaled - low), s)
        return norms, (np.sign(np.nan_to_num(exact)) * level).astype(np.int64)

    def encode(self, values: Tensor, rng: np.random.Generator) -> np.ndarray:
        norms, levels = self.quantise(values.numpy(), rng)
        return np.concatenate([norms.view(np.uint8), pack(levels + self.levels, self.bits)])

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> Tensor:
        split = self._buckets(length) * dtype.itemsize
        norms = payload[:split].view(numpy_type(dtype))
        levels = unpack(payload[split:], length, self.bits) - self.levels
        unit = levels.astype(norms.dtype) / norms.dtype.type(self.levels)
        return torch.from_numpy(np.repeat(norms, self.bucket)[:length]) * torch.from_numpy(unit)

    def size(self, length: int, dtype: torch.dtype) -> int:
        return self._buckets(length) * dtype.itemsize + packed_bytes(length, self.bits)

    def _buckets(self, length: int) -> int:
        return -(-length // self.bucket)
