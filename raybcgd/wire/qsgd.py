"""The QSGD codec."""

from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from raybcgd.wire.bits import pack, packed_bytes, unpack
from raybcgd.wire.codecs import Codec, read


class QSGD(Codec):
    """QSGD (Alistarh et al., NeurIPS 2017): unbiased random rounding to a few levels of each bucket's norm.

    The payload has one norm per bucket, in the model's dtype, and b = ceil(log2(2 levels + 1)) bits per value for sign
    and level. For n float32 values, this is 4 ceil(n / bucket) + ceil(n b / 8) bytes. FedAvg with this codec is FedPAQ.
    """

    draws: ClassVar[bool] = True
    levels: Annotated[int, Field(ge=1, le=2**15)] = 127
    """s, the number of levels between 0 and the norm. 127 means 8 bits per value, 7 means 4, 1 means 2."""
    bucket: Annotated[int, Field(ge=1)] = 512
    """Number of values that share a norm."""

    @property
    def bits(self) -> int:
        """Bits per value."""
        return (2 * self.levels).bit_length()

    def quantise(self, values: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the norm of each bucket and the signed level of each value, an integer from -s to s."""
        s, starts = self.levels, np.arange(0, len(values), self.bucket)
        exact = values.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # a non-finite value makes the norm non-finite
            norms = np.sqrt(np.add.reduceat(exact**2, starts)).astype(values.dtype)
            norm = np.repeat(norms, self.bucket)[: len(values)].astype(np.float64)
            scaled = np.divide(s * np.abs(exact), norm, out=np.zeros_like(exact), where=norm > 0)
        scaled = np.nan_to_num(scaled, nan=0.0, posinf=0.0)
        low = np.floor(scaled)
        # The norm is rounded too, so a value may exceed it by one unit in the last place.
        level = np.minimum(low + (rng.random(len(values)) < scaled - low), s)
        return norms, (np.sign(np.nan_to_num(exact)) * level).astype(np.int64)

    def encode(self, values: Tensor, rng: np.random.Generator) -> np.ndarray:
        norms, levels = self.quantise(values.numpy(), rng)
        return np.concatenate([norms.view(np.uint8), pack(levels + self.levels, self.bits)])

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> Tensor:
        split = len(payload) - packed_bytes(length, self.bits)
        norms = read(payload[:split], dtype).repeat_interleave(self.bucket)[:length]
        levels = torch.from_numpy(unpack(payload[split:], length, self.bits) - self.levels).to(dtype)
        return norms * (levels / self.levels)

    def size(self, length: int, dtype: torch.dtype) -> int:
        return -(-length // self.bucket) * dtype.itemsize + packed_bytes(length, self.bits)
