"""A declared upload as slices of the flat vector and as bytes: sliced, encoded, decoded and counted in one place."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybcgd.algorithms.api import Algorithm, Declared, Travel, declared
from raybcgd.model.blocks import BlockLayout
from raybcgd.wire.codecs import Codec, Raw, numpy_type

Slices = tuple[slice, ...]


def take(vector: Tensor, slices: Slices) -> Tensor:
    """The coordinates of some slices, side by side; a view where that is possible."""
    if not slices:
        return vector[..., :0]
    if len(slices) == 1:
        return vector[..., slices[0]]
    return torch.cat([vector[..., s] for s in slices], dim=-1)


def put(vector: Tensor, slices: Slices, values: Tensor) -> None:
    """Write values that lie side by side back to the slices that they came from."""
    start = 0
    for s in slices:
        vector[..., s] = values[..., start : start + s.stop - s.start]
        start += s.stop - s.start


def length(slices: Slices) -> int:
    """The number of coordinates in some slices."""
    return sum(s.stop - s.start for s in slices)


@dataclass(frozen=True)
class Traffic:
    """What one upload cost, or the sum of several."""

    floats: int
    """Values sent, in whatever precision."""
    bytes: int
    """Everything sent."""
    by_block: tuple[int, ...]
    """Floats of each block, the shared one last."""


class Wire:
    """The wire format of one algorithm on one layout."""

    def __init__(self, algorithm: Algorithm, layout: BlockLayout, codec: Codec, dtype: torch.dtype) -> None:
        self.layout, self.codec, self.dtype = layout, codec, dtype
        self._type = algorithm.upload_type
        self._fields = declared(self._type)
        self._down = declared(algorithm.Down)
        self._raw = Raw()
        self._fixed: dict[int | None, Traffic] = {}
        self._sizes: dict[int | None, list[int]] = {}

    def slices(self, travel: Travel, block: int | None) -> Slices:
        """The coordinates that a field carries for a client of a group; every coordinate where there are no groups."""
        if travel is Travel.SCALAR:
            return ()
        if travel is Travel.SHARED:
            return (self.layout.shared.slice,) if self.layout.shared.size else ()
        if travel is Travel.WHOLE or block is None:
            return (slice(0, self.layout.size),)
        return self.layout.own(block)

    def coordinates(self, block: int | None) -> Slices:
        """The coordinates of the widest field of an upload: those on which the server can know anything."""
        travels = {field.travel for field in self._fields}
        widest = next((travel for travel in (Travel.WHOLE, Travel.OWN, Travel.SHARED) if travel in travels), None)
        return () if widest is None else self.slices(widest, block)

    def shared(self, block: int | None) -> slice:
        """The shared block among `coordinates`, of which it is the end."""
        stop = length(self.coordinates(block))
        return slice(stop - self.layout.shared.size, stop)

    def _length(self, field: Declared, block: int | None) -> int:
        return 1 if field.travel is Travel.SCALAR else length(self.slices(field.travel, block))

    def _codec(self, field: Declared) -> Codec:
        return self._raw if field.travel is Travel.SCALAR else self.codec

    def select(self, upload: Any, block: int | None) -> dict[str, Tensor]:
        """The values of every field that will travel, side by side, on the CPU."""
        chosen = {}
        for field in self._fields:
            value = getattr(upload, field.name)
            if field.travel is not Travel.SCALAR:
                value = take(value, self.slices(field.travel, block))
            chosen[field.name] = value.detach().to(device="cpu", dtype=self.dtype).reshape(-1)
        return chosen

    def encode(self, values: dict[str, Tensor], rng: np.random.Generator) -> np.ndarray:
        """One contiguous run of bytes: the declared fields one after another, and nothing else."""
        parts = [self._codec(field).encode(values[field.name], rng) for field in self._fields]
        # A single part may be a view of a buffer that the next client will overwrite.
        return np.concatenate(parts) if len(parts) > 1 else parts[0].copy()

    def decode(self, payload: np.ndarray, block: int | None) -> Any:
        """The upload as the server sees it: an `Upload` whose fields hold the coordinates that travelled."""
        return self._type(
            **{
                field.name: self._codec(field).decode(part, self._length(field, block), self.dtype)
                for field, part in self._parts(payload, block)
            }
        )

    def _parts(self, payload: np.ndarray, block: int | None) -> Iterator[tuple[Declared, np.ndarray]]:
        """The bytes of every field."""
        if block not in self._sizes:
            self._sizes[block] = [
                self._codec(field).size(self._length(field, block), self.dtype) for field in self._fields
            ]
        sizes = self._sizes[block]
        if sum(sizes) != payload.nbytes:
            raise ValueError(f"an upload of {payload.nbytes} bytes came where {sum(sizes)} were declared")
        start = 0
        for field, size in zip(self._fields, sizes, strict=True):
            yield field, payload[start : start + size]
            start += size

    def no_errors(self) -> dict[str, np.ndarray]:
        """What a client has not sent yet before its first upload, for a codec that remembers."""
        if not self.codec.remembers:
            return {}
        return {f"codec.{field.name}": self._zeros() for field in self._fields if field.travel is not Travel.SCALAR}

    def _zeros(self) -> np.ndarray:
        return np.zeros(self.layout.size, dtype=numpy_type(self.dtype))

    def add_errors(
        self, values: dict[str, Tensor], state: Mapping[str, np.ndarray], block: int | None
    ) -> dict[str, Tensor]:
        """The values to encode: those of a round, and what the client had not sent before, where it takes part now."""
        added = dict(values)
        for field in self._fields:
            if (errors := state.get(f"codec.{field.name}")) is not None:
                added[field.name] = values[field.name] + take(torch.tensor(errors), self.slices(field.travel, block))
        return added

    def keep_errors(
        self, values: dict[str, Tensor], sent: Any, state: Mapping[str, np.ndarray], block: int | None
    ) -> dict[str, np.ndarray]:
        """What the client has not sent yet after an upload: on its coordinates the rest, elsewhere what was there."""
        kept = {}
        for field in self._fields:
            if (errors := state.get(f"codec.{field.name}")) is not None:
                result = torch.from_numpy(errors.copy())
                put(result, self.slices(field.travel, block), values[field.name] - getattr(sent, field.name))
                kept[f"codec.{field.name}"] = result.numpy()
        return kept

    def upload(self, block: int | None, payload: np.ndarray | None = None) -> Traffic:
        """What one upload of a client of a group costs.

        A codec that chooses coordinates shows in its payload which blocks they were of. Without one, the counts by
        block are of the coordinates that may be chosen.
        """
        if payload is not None and type(self.codec).positions is not Codec.positions:
            return self._upload(block, payload)
        if block not in self._fixed:
            self._fixed[block] = self._upload(block, None)
        return self._fixed[block]

    def _upload(self, block: int | None, payload: np.ndarray | None) -> Traffic:
        parts = {} if payload is None else {field.name: part for field, part in self._parts(payload, block)}
        per_block = np.zeros(len(self.layout.blocks) + 1, dtype=np.int64)
        floats = 0
        size = 0
        for field in self._fields:
            count, codec = self._length(field, block), self._codec(field)
            floats += codec.values(count)
            size += codec.size(count, self.dtype)
            places = codec.positions(parts[field.name], count, self.dtype) if parts else None
            per_block += self._by_block(self.slices(field.travel, block), places)
        return Traffic(floats, size, tuple(per_block.tolist()))

    def uncoded_bytes(self, block: int | None) -> int:
        """What one upload would cost without a codec."""
        return sum(self._length(field, block) for field in self._fields) * self.dtype.itemsize

    def _by_block(self, slices: Slices, places: np.ndarray | None = None) -> np.ndarray:
        """How many coordinates of some slices (or of those at some places in them) lie in each block."""
        ends = [part.stop for part in (*self.layout.blocks, self.layout.shared)]
        if places is None:
            counts = np.zeros(len(ends), dtype=np.int64)
            for s in slices:
                counts += np.diff(np.clip([0, *ends], s.start, s.stop))
            return counts
        coordinates = np.concatenate([np.arange(s.start, s.stop) for s in slices])[places]
        return np.bincount(np.searchsorted(ends, coordinates, side="right"), minlength=len(ends))

    @cached_property
    def download(self) -> Traffic:
        """What the broadcast costs for one client."""
        per_block = np.zeros(len(self.layout.blocks) + 1, dtype=np.int64)
        floats = 0
        for field in self._down:
            floats += self._length(field, None)
            per_block += self._by_block(self.slices(field.travel, None))
        return Traffic(floats, floats * self.dtype.itemsize, tuple(per_block.tolist()))


def total(traffic: Sequence[Traffic]) -> Traffic:
    """The sum of several clients' traffic."""
    by_block = tuple(sum(counts) for counts in zip(*(t.by_block for t in traffic), strict=True))
    return Traffic(sum(t.floats for t in traffic), sum(t.bytes for t in traffic), by_block)
