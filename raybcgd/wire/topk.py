"""Top-k with error feedback (Stich et al., NeurIPS 2018): the largest values travel, the rest is kept for later."""

from typing import Annotated, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from raybcgd.wire.bits import pack, packed_bytes, unpack
from raybcgd.wire.codecs import Codec, numpy_type, read


class TopK(Codec):
    """Top-k with error feedback (Stich et al., NeurIPS 2018): the largest values travel, the rest is kept for later.

    Of n values, k take their own bytes each and ceil(log2 n) bits for where they belong: with float32, 4 k +
    ceil(k bits / 8) bytes. With k = n nothing needs to be said about places. What a client has not sent it keeps, a
    value a coordinate, and adds it to the next upload in which that coordinate takes part.
    """

    codec: Literal["topk"] = "topk"
    k: Annotated[int, Field(ge=1)] | None = None
    """Values that each field of an upload may send; replaces `fraction`."""
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    """The share of an upload's values that is sent, at least one. 0.01 unless given."""
    error_feedback: bool = True
    """Whether what was not sent is kept. Turn it off under control variates (SCAFFOLD, FedPVR, FedBCGD+): c_i makes up
    for it already, and with both the clients correct the same error twice, which diverges."""

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        if self.k is not None and self.fraction is not None:
            raise ValueError("give k or fraction, not both")
        return self

    @property
    def remembers(self) -> bool:
        return self.error_feedback

    def values(self, length: int) -> int:
        wanted = self.k or max(1, round(length * (self.fraction or 0.01)))
        return min(wanted, length)

    def encode(self, values: Tensor, rng: np.random.Generator) -> np.ndarray:
        array = values.numpy()
        n, k = len(array), self.values(len(array))
        if k == n:
            return array.view(np.uint8)
        # Not-a-number sorts last, so it is sent and the server sees it.
        chosen = np.sort(np.argpartition(np.abs(array), n - k)[n - k :])
        return np.concatenate([array[chosen].view(np.uint8), pack(chosen, _index_bits(n))])

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> Tensor:
        places = self.positions(payload, length, dtype)
        if places is None:
            return read(payload, dtype)
        dense = np.zeros(length, dtype=numpy_type(dtype))
        dense[places] = payload[: len(places) * dtype.itemsize].view(dense.dtype)
        return torch.from_numpy(dense)

    def positions(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> np.ndarray | None:
        k = self.values(length)
        return None if k == length else unpack(payload[k * dtype.itemsize :], k, _index_bits(length))

    def size(self, length: int, dtype: torch.dtype) -> int:
        k = self.values(length)
        return k * dtype.itemsize + (0 if k == length else packed_bytes(k, _index_bits(length)))


def _index_bits(length: int) -> int:
    return (length - 1).bit_length()
