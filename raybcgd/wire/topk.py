"""The top-k codec."""

from typing import Annotated, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from raybcgd.wire.bits import pack, packed_bytes, unpack
from raybcgd.wire.codecs import Codec, read


class TopK(Codec):
    """Top-k with error feedback (Stich et al., NeurIPS 2018): send the k values of largest magnitude, keep the rest.

    The payload has k of n values, unchanged, and their indices, each with b = ceil(log2 n) bits. For float32, this is
    4 k + ceil(k b / 8) bytes. With k = n there are no indices. A client keeps unsent values and adds them to its next
    upload of the same coordinates.
    """

    k: Annotated[int, Field(ge=1)] | None = None
    """Number of values to send per field, instead of `fraction`."""
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    """Fraction of the values to send per field, at least one value. Default: 0.01, unless `k` is set."""
    error_feedback: bool = True
    """Keep unsent values for later uploads. Turn it off for methods with control variates (SCAFFOLD, FedPVR, FedBCGD+):
    c_i already compensates for unsent values, and training with both diverges."""

    @model_validator(mode="after")
    def _check_one_limit(self) -> Self:
        if self.k is not None and self.fraction is not None:
            raise ValueError("set k or fraction, not both")
        return self

    @property
    def remembers(self) -> bool:
        return self.error_feedback

    def values(self, length: int) -> int:
        return min(length, self.k or max(1, round(length * (self.fraction or 0.01))))

    def encode(self, values: Tensor, rng: np.random.Generator) -> np.ndarray:
        array = values.numpy()
        n, k = len(array), self.values(len(array))
        if k == n:
            return array.view(np.uint8)
        # NaN sorts last, so it is sent and the server detects it.
        chosen = np.sort(np.argpartition(np.abs(array), n - k)[n - k :])
        return np.concatenate([array[chosen].view(np.uint8), pack(chosen, self._index_bits(n))])

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> Tensor:
        indices = self.positions(payload, length, dtype)
        if indices is None:
            return read(payload, dtype)
        dense = torch.zeros(length, dtype=dtype)
        dense[indices] = read(payload[: len(indices) * dtype.itemsize], dtype)
        return dense

    def positions(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> np.ndarray | None:
        k = self.values(length)
        return None if k == length else unpack(payload[k * dtype.itemsize :], k, self._index_bits(length))

    def size(self, length: int, dtype: torch.dtype) -> int:
        k = self.values(length)
        return k * dtype.itemsize + packed_bytes(k, self._index_bits(length))

    def _index_bits(self, length: int) -> int:
        return 0 if self.values(length) == length else (length - 1).bit_length()
