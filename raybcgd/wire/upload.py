"""Slice, encode, decode and count declared uploads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybcgd.algorithms.api import Algorithm
from raybcgd.algorithms.contract import Field, Kind, declared
from raybcgd.model.blocks import BlockLayout
from raybcgd.wire.codecs import Codec, Raw, numpy_type

Slices = tuple[slice, ...]


def take(vector: Tensor, slices: Slices) -> Tensor:
    """Return the coordinates in the slices, concatenated. One slice gives a view."""
    if not slices:
        return vector[..., :0]
    if len(slices) == 1:
        return vector[..., slices[0]]
    return torch.cat([vector[..., s] for s in slices], dim=-1)


def put(vector: Tensor, slices: Slices, values: Tensor) -> None:
    """Write concatenated values back to their slices: the inverse of `take`."""
    start = 0
    for s in slices:
        vector[..., s] = values[..., start : start + s.stop - s.start]
        start += s.stop - s.start


def restrict(values: Any, slices: Slices) -> Any:
    """Return a declared tuple with its vectors on the coordinates in the slices only, on the CPU."""
    fields = declared(type(values))
    pairs = zip(fields, values, strict=True)
    return type(values)(*((take(value, slices) if field.per_coordinate else value).cpu() for field, value in pairs))


def length(slices: Slices) -> int:
    """Return the number of coordinates in the slices."""
    return sum(s.stop - s.start for s in slices)


@dataclass(frozen=True)
class Traffic:
    """Cost of one or several uploads or downloads."""

    floats: int
    """Values sent, at any precision."""
    bytes: int
    """All bytes sent, including indices and norms."""
    by_block: tuple[int, ...]
    """Floats per block, the shared block last."""


class Wire:
    """The wire format of one algorithm on one block layout."""

    def __init__(self, algorithm: Algorithm, layout: BlockLayout, codec: Codec, dtype: torch.dtype) -> None:
        self.layout, self.codec, self.dtype = layout, codec, dtype
        self._type = algorithm.upload_type
        self._fields = declared(self._type)
        self._down = declared(algorithm.Down)
        self._raw = Raw()
        self._fixed: dict[int | None, Traffic] = {}
        self._sizes: dict[int | None, list[int]] = {}

    def slices(self, kind: Kind, block: int | None) -> Slices:
        """Return the coordinates that a field carries for a client with this block. Block None: every block."""
        if kind is Kind.SCALAR:
            return ()
        if kind is Kind.SHARED:
            return (self.layout.shared.slice,) if self.layout.shared.size else ()
        if kind is Kind.WHOLE or block is None:
            return (slice(0, self.layout.size),)
        return self.layout.own(block)

    def coordinates(self, block: int | None) -> Slices:
        """Return the coordinates of the widest field of an upload: all that the server can learn about."""
        kinds = {field.kind for field in self._fields}
        widest = next((kind for kind in (Kind.WHOLE, Kind.OWN, Kind.SHARED) if kind in kinds), None)
        return () if widest is None else self.slices(widest, block)

    def shared_span(self, block: int | None) -> slice:
        """Return the position of the shared block within `coordinates`: always the end."""
        stop = length(self.coordinates(block))
        return slice(stop - self.layout.shared.size, stop)

    def _length(self, field: Field, block: int | None) -> int:
        return 1 if field.kind is Kind.SCALAR else length(self.slices(field.kind, block))

    def _codec(self, field: Field) -> Codec:
        return self._raw if field.kind is Kind.SCALAR else self.codec

    def select(self, upload: Any, block: int | None) -> dict[str, Tensor]:
        """Return the values of each field that will be sent, as one vector per field on the CPU."""
        values = {}
        for field in self._fields:
            value = getattr(upload, field.name)
            if field.kind is not Kind.SCALAR:
                value = take(value, self.slices(field.kind, block))
            values[field.name] = value.detach().to(device="cpu", dtype=self.dtype).reshape(-1)
        return values

    def encode(self, values: dict[str, Tensor], rng: np.random.Generator) -> np.ndarray:
        """Return the payload: the encoded fields in declared order, and nothing else."""
        parts = [self._codec(field).encode(values[field.name], rng) for field in self._fields]
        # A single part may be a view of a buffer that the next client overwrites.
        return np.concatenate(parts) if len(parts) > 1 else parts[0].copy()

    def decode(self, payload: np.ndarray, block: int | None) -> Any:
        """Return the upload as the server sees it: fields have only the uploaded coordinates."""
        return self._type(
            **{
                field.name: self._codec(field).decode(part, self._length(field, block), self.dtype)
                for field, part in self._parts(payload, block)
            }
        )

    def _parts(self, payload: np.ndarray, block: int | None) -> Iterator[tuple[Field, np.ndarray]]:
        """Yield each field with its bytes."""
        if block not in self._sizes:
            self._sizes[block] = [
                self._codec(field).size(self._length(field, block), self.dtype) for field in self._fields
            ]
        sizes = self._sizes[block]
        if sum(sizes) != payload.nbytes:
            raise ValueError(
                f'wire.codec = "{self.codec.codec}": the upload has {payload.nbytes} bytes instead of {sum(sizes)}; '
                "make `encode` and `size` agree"
            )
        start = 0
        for field, size in zip(self._fields, sizes, strict=True):
            yield field, payload[start : start + size]
            start += size

    def initial_residuals(self) -> dict[str, np.ndarray]:
        """Return a client's residuals before its first upload: zeros, or nothing without error feedback."""
        if not self.codec.remembers:
            return {}
        return {
            f"codec.{field.name}": np.zeros(self.layout.size, dtype=numpy_type(self.dtype))
            for field in self._fields
            if field.kind is not Kind.SCALAR
        }

    def add_residuals(
        self, values: dict[str, Tensor], state: Mapping[str, np.ndarray], block: int | None
    ) -> dict[str, Tensor]:
        """Return the values to encode: those of this round plus the client's residuals on the same coordinates."""
        added = dict(values)
        for field in self._fields:
            if (residual := state.get(f"codec.{field.name}")) is not None:
                added[field.name] = values[field.name] + take(torch.tensor(residual), self.slices(field.kind, block))
        return added

    def updated_residuals(
        self, values: dict[str, Tensor], sent: Any, state: Mapping[str, np.ndarray], block: int | None
    ) -> dict[str, np.ndarray]:
        """Return the residuals after an upload: `values - sent` where the client uploads, unchanged elsewhere."""
        updated = {}
        for field in self._fields:
            if (residual := state.get(f"codec.{field.name}")) is not None:
                result = torch.from_numpy(residual.copy())
                put(result, self.slices(field.kind, block), values[field.name] - getattr(sent, field.name))
                updated[f"codec.{field.name}"] = result.numpy()
        return updated

    def upload(self, block: int | None, payload: np.ndarray | None = None) -> Traffic:
        """Return the cost of one upload of a client with this block.

        For a codec that selects coordinates, the payload tells how many belong to each block. Without a payload,
        `by_block` counts all candidates.
        """
        if payload is not None and type(self.codec).positions is not Codec.positions:
            parts = {field.name: part for field, part in self._parts(payload, block)}
            return self._traffic(self._fields, self.codec, block, parts)
        if block not in self._fixed:
            self._fixed[block] = self._traffic(self._fields, self.codec, block, {})
        return self._fixed[block]

    @cached_property
    def download(self) -> Traffic:
        """Cost of the broadcast per client. Downloads are raw."""
        return self._traffic(self._down, self._raw, None, {})

    def uncoded_bytes(self, block: int | None) -> int:
        """Return the size of one upload without a codec."""
        return sum(self._length(field, block) for field in self._fields) * self.dtype.itemsize

    def _traffic(
        self, fields: Sequence[Field], codec: Codec, block: int | None, parts: Mapping[str, np.ndarray]
    ) -> Traffic:
        per_block = np.zeros(len(self.layout.blocks) + 1, dtype=np.int64)
        floats = size = 0
        for field in fields:
            count, used = self._length(field, block), self._raw if field.kind is Kind.SCALAR else codec
            floats += used.values(count)
            size += used.size(count, self.dtype)
            positions = used.positions(parts[field.name], count, self.dtype) if parts else None
            per_block += self._by_block(self.slices(field.kind, block), positions)
        return Traffic(floats, size, tuple(per_block.tolist()))

    def _by_block(self, slices: Slices, positions: np.ndarray | None) -> np.ndarray:
        """Count the coordinates of the slices (or those at `positions` within them) in each block."""
        ends = [part.stop for part in (*self.layout.blocks, self.layout.shared)]
        if positions is None:
            counts = np.zeros(len(ends), dtype=np.int64)
            for s in slices:
                counts += np.diff(np.clip([0, *ends], s.start, s.stop))
            return counts
        coordinates = np.concatenate([np.arange(s.start, s.stop) for s in slices])[positions]
        return np.bincount(np.searchsorted(ends, coordinates, side="right"), minlength=len(ends))


def total(traffic: Sequence[Traffic]) -> Traffic:
    """Return the sum over several clients."""
    by_block = tuple(sum(counts) for counts in zip(*(t.by_block for t in traffic), strict=True))
    return Traffic(sum(t.floats for t in traffic), sum(t.bytes for t in traffic), by_block)
