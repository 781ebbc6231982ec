"""Slice, encode, decode and count declared uploads."""

from collections.abc import Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybcgd.algorithms.api import Algorithm
from raybcgd.algorithms.contract import Field, Kind, declared
from raybcgd.errors import ContractError
from raybcgd.messages import Traffic
from raybcgd.model.blocks import BlockLayout
from raybcgd.wire.codecs import Codec, Raw

Slices = tuple[slice, ...]
Values = dict[str, Tensor]
Arrays = dict[str, np.ndarray]


def take(vector: Tensor, slices: Slices) -> Tensor:
    """Return the coordinates in the slices, concatenated. One slice gives a view."""
    parts = [vector[..., s] for s in slices] or [vector[..., :0]]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def put(vector: Tensor, slices: Slices, values: Tensor) -> None:
    """Write concatenated values back to their slices: the inverse of `take`."""
    parts = torch.split(values, [s.stop - s.start for s in slices], dim=-1)
    for s, part in zip(slices, parts, strict=True):
        vector[..., s] = part


def restrict(values: Any, slices: Slices) -> Any:
    """Return a declared tuple with its vectors restricted to the slices."""
    pairs = zip(declared(type(values)), values, strict=True)
    return type(values)(*(take(value, slices) if field.per_coordinate else value for field, value in pairs))


def length(slices: Slices) -> int:
    """Return the number of coordinates in the slices."""
    return sum(s.stop - s.start for s in slices)


class _Part(NamedTuple):
    """One field of an upload for a given block."""

    codec: Codec
    length: int
    bytes: slice
    """Its place in the payload."""


class Wire:
    """The wire format of one algorithm on one block layout."""

    def __init__(self, algorithm: Algorithm, layout: BlockLayout, codec: Codec, dtype: torch.dtype) -> None:
        self.layout, self.codec, self.dtype = layout, codec, dtype
        self._type, self._raw = algorithm.upload_type, Raw()
        self._fields, self._down = declared(self._type), declared(algorithm.Down)
        self._fixed: dict[int | None, Traffic] = {}
        self._formats: dict[int | None, list[_Part]] = {}

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
        """Return the coordinates of the widest field of an upload: all that the server receives."""
        kinds = {field.kind for field in self._fields}
        widest = next((kind for kind in (Kind.WHOLE, Kind.OWN, Kind.SHARED) if kind in kinds), Kind.SCALAR)
        return self.slices(widest, block)

    def shared_span(self, block: int | None) -> slice:
        """Return the position of the shared block within `coordinates`: always the end."""
        stop = length(self.coordinates(block))
        return slice(stop - self.layout.shared.size, stop)

    def _length(self, field: Field, block: int | None) -> int:
        return length(self.slices(field.kind, block)) if field.per_coordinate else 1

    def _codec(self, field: Field) -> Codec:
        return self.codec if field.per_coordinate else self._raw

    def select(self, upload: Any, block: int | None) -> Values:
        """Return the values to send: per field, the uploaded coordinates of each row."""
        values = {}
        for field in self._fields:
            value = getattr(upload, field.name)
            value = take(value, self.slices(field.kind, block)) if field.per_coordinate else value
            values[field.name] = value.to(self.dtype)
        return values

    def encode(self, values: Values, rng: np.random.Generator) -> np.ndarray:
        """Return the payload: the encoded fields in declared order, and nothing else."""
        # Copies even a single part, which may be a view of a buffer that the next client overwrites.
        return np.concatenate([self._codec(field).encode(values[field.name], rng) for field in self._fields])

    def decode(self, payload: np.ndarray, block: int | None) -> Any:
        """Return the upload as the server sees it, with only the uploaded coordinates."""
        return self._type(*(self._decoded(part, payload) for part in self._parts(payload, block)))

    def _decoded(self, part: "_Part", payload: np.ndarray) -> Tensor:
        values = part.codec.decode(payload[part.bytes], part.length, self.dtype)
        if not isinstance(values, Tensor) or values.shape != (part.length,) or values.dtype != self.dtype:
            shape = f" of shape {tuple(values.shape)} and {values.dtype}" if isinstance(values, Tensor) else ""
            found = f"`decode` returned a {type(values).__name__}{shape}"
            wanted = f"a Tensor of shape ({part.length},) and {self.dtype}"
            raise ContractError(f'wire.codec = "{part.codec.codec}": {found}; return {wanted}')
        return values

    def _parts(self, payload: np.ndarray, block: int | None) -> list[_Part]:
        """Return where each field is in the payload. Computed once per block, because a round decodes many uploads."""
        if block not in self._formats:
            self._formats[block], start = [], 0
            for field in self._fields:
                codec, count = self._codec(field), self._length(field, block)
                stop = start + codec.size(count, self.dtype)
                self._formats[block].append(_Part(codec, count, slice(start, stop)))
                start = stop
        parts = self._formats[block]
        if parts[-1].bytes.stop != payload.nbytes:
            found = f"an upload has {payload.nbytes} bytes instead of {parts[-1].bytes.stop}"
            raise ContractError(f'wire.codec = "{self.codec.codec}": {found}; make `encode` and `size` agree')
        return parts

    def initial_residuals(self) -> Arrays:
        """Return a client's residuals before its first upload: zeros, or nothing without error feedback."""
        vectors = [field.name for field in self._fields if field.per_coordinate and self.codec.remembers]
        return {f"codec.{name}": torch.zeros(self.layout.size, dtype=self.dtype).numpy() for name in vectors}

    def add_residuals(self, values: Values, state: Arrays, block: int | None) -> Values:
        """Return the values to encode: those of this round plus the residuals on the same coordinates."""
        added = dict(values)
        for field in self._fields:
            if (residual := state.get(f"codec.{field.name}")) is not None:
                added[field.name] = values[field.name] + take(torch.tensor(residual), self.slices(field.kind, block))
        return added

    def updated_residuals(self, values: Values, sent: Any, state: Arrays, block: int | None) -> Arrays:
        """Return the residuals after an upload: `values - sent` where the client uploads, unchanged elsewhere."""
        updated = {}
        for field in self._fields:
            if (residual := state.get(f"codec.{field.name}")) is not None:
                result = torch.tensor(residual)
                put(result, self.slices(field.kind, block), values[field.name] - getattr(sent, field.name))
                updated[f"codec.{field.name}"] = result.numpy()
        return updated

    def upload(self, block: int | None, payload: np.ndarray | None = None) -> Traffic:
        """Return the cost of one upload of a client with this block.

        If the codec sends only some values, the payload determines how many are in each block. Without a payload,
        `by_block` counts all values.
        """
        if payload is not None and self.cost_depends_on_values:
            fields = [payload[part.bytes] for part in self._parts(payload, block)]
            return self._traffic(self._fields, self.codec, block, fields)
        if block not in self._fixed:
            self._fixed[block] = self._traffic(self._fields, self.codec, block, [])
        return self._fixed[block]

    @cached_property
    def cost_depends_on_values(self) -> bool:
        """Whether the codec sends only some values, so that their number per block depends on the values."""
        return type(self.codec).positions is not Codec.positions

    @cached_property
    def download(self) -> Traffic:
        """Cost of the broadcast per client. Downloads are not encoded."""
        return self._traffic(self._down, self._raw, None, [])

    def uncoded_bytes(self, block: int | None) -> int:
        """Return the size of one upload without a codec."""
        return sum(self._length(field, block) for field in self._fields) * self.dtype.itemsize

    def _traffic(self, fields: Sequence[Field], codec: Codec, block: int | None, parts: list[np.ndarray]) -> Traffic:
        by_block = np.zeros(len(self.layout.edges), dtype=np.int64)
        floats = size = 0
        for field, part in zip_longest(fields, parts):
            count, used = self._length(field, block), codec if field.per_coordinate else self._raw
            floats += used.values(count)
            size += used.size(count, self.dtype)
            positions = None if part is None else used.positions(part, count, self.dtype)
            by_block += self._by_block(self.slices(field.kind, block), positions)
        return Traffic(floats, size, tuple(by_block.tolist()))

    def _by_block(self, slices: Slices, positions: np.ndarray | None) -> np.ndarray:
        """Count the coordinates per block: all in the slices, or those at `positions` within them."""
        edges = (*self.layout.edges, self.layout.size)
        if positions is None:
            return sum((np.diff(np.clip(edges, s.start, s.stop)) for s in slices), np.zeros(len(edges) - 1, np.int64))
        coordinates = np.concatenate([np.arange(s.start, s.stop) for s in slices])[positions]
        return np.bincount(np.searchsorted(edges[1:], coordinates, side="right"), minlength=len(edges) - 1)


def total(traffic: Sequence[Traffic]) -> Traffic:
    """Return the sum over several clients."""
    by_block = tuple(sum(counts) for counts in zip(*(t.by_block for t in traffic), strict=True))
    return Traffic(sum(t.floats for t in traffic), sum(t.bytes for t in traffic), by_block)
