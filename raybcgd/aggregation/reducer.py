"""Compute terms from decoded uploads, and exact sums from terms: the same on the hosts and on the coordinator."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybcgd.aggregation.exact import ExactSum, Levels
from raybcgd.algorithms.api import Algorithm, Task
from raybcgd.algorithms.contract import Kind, declared, displacement, divergence_fix
from raybcgd.messages import Partial, RoundOrders, SumKey
from raybcgd.problem import Problem
from raybcgd.wire.upload import Slices, Wire, restrict, take

SQUARES = "squared norms"
"""Sum of |m_i|^2 per block, where m_i is the displacement of client i. The space rules out a clash with a field."""
MOVED = "unweighted displacement"
"""Sum of m_i, if the terms are weighted."""
DRIFT = "squared displacement"
"""Sum of m_i^2 per coordinate, if it is measured."""

PIECE = 1 << 22
"""Longest piece of a vector: 32 MB of float64."""


_BUFFERED = 8192
"""NumPy's einsum sums rows up to this length in one pass. How it splits longer rows depends on the whole matrix."""


class Diverged(ArithmeticError):
    """A client uploaded values that are not finite."""


class Span(NamedTuple):
    """A piece of a term. `segment` and `piece` are those of its `SumKey`."""

    segment: int
    piece: int
    place: slice
    """In the flat vector."""
    part: slice
    """In a client's term, which may have only some of the coordinates."""

    def key(self, name: str) -> SumKey:
        """Return the key of this piece of a sum."""
        return SumKey(name, self.segment, self.piece)

    def covers(self, place: slice) -> bool:
        """Return whether a slice of the flat vector is inside this piece."""
        return bool(self.place.start <= place.start and place.stop <= self.place.stop)

    def part_of(self, place: slice) -> slice:
        """Return where a slice of the flat vector is in a client's term."""
        shift = self.part.start - self.place.start
        return slice(place.start + shift, place.stop + shift)


class _Group(NamedTuple):
    """What all uploads of the same block have in common."""

    trained: Tensor | None
    """For each uploaded coordinate: 1 for a parameter, 0 for a buffer. None without buffers."""
    shared: slice
    """The shared block, among the uploaded coordinates."""
    spans: Mapping[str, list[Span]]
    """The pieces of each term."""
    measured: tuple[tuple[int, slice], ...]
    """The blocks that the displacement covers: number, and slice of the displacement."""
    moved: Tensor | None
    """For each coordinate of the displacement: 1 for a parameter, 0 for a buffer. None without buffers."""

    def parameters(self, moved: Tensor) -> Tensor:
        """Return displacements with zeros on buffers, which measurements exclude."""
        return moved if self.moved is None else moved * self.moved


class Measured(NamedTuple):
    """Measurements of some clients' terms, computed on the device and copied from it together."""

    largest: Mapping[SumKey, float]
    """The largest magnitude in each piece of a term."""
    squares: Tensor
    """Squared norms of the displacements: a row per client, a column per measured block."""


class Reducer:
    """Computes the terms of uploads and adds them up, for one round and some of its clients."""

    def __init__(self, problem: Problem, wire: Wire, down: Any, orders: RoundOrders, device: torch.device) -> None:
        algorithm = problem.algorithm
        self._algorithm, self._wire, self._down, self._orders, self._device = algorithm, wire, down, orders, device
        self._trained = problem.trained_on(device)
        self._fields, self._displacement = declared(algorithm.terms_type), displacement(algorithm.terms_type)
        self._displacement_kind = next(field.kind for field in self._fields if field.name == self._displacement)
        self._weighted = problem.config.cohort.weighting == "samples"
        self._groups: dict[int | None, _Group] = {}
        self._downs: dict[int | None, Any] = {}
        """The broadcast on the uploaded coordinates, by block."""
        self._sums: dict[SumKey, ExactSum] = {}
        self._clients: list[int] = []
        self.broken = False
        """Whether adding an upload failed half-way."""

    def terms(self, block: int | None, sent: Any, steps: int | Tensor) -> Any:
        """Return the algorithm's terms of an upload, or of a stack of uploads, on the uploaded coordinates."""
        if type(self._algorithm).terms is Algorithm.terms:  # avoids restricting the broadcast
            return sent
        group = self._group(block)
        if block not in self._downs:
            self._downs[block] = restrict(self._down, self._wire.coordinates(block))
        return self._algorithm.terms(
            sent, self._downs[block], Task(steps, self._orders.lr, group.trained, group.shared)
        )

    def measure(self, block: int | None, terms: Any, count: int) -> Tensor | None:
        """Return all numbers that `add` needs from the device as one vector. None on a CPU, where reading is free."""
        if self._device.type == "cpu":
            return None
        group, rows = self._group(block), [value.reshape(count, -1) for value in terms]
        largest = [
            values[:, span.part].abs().amax()
            for field, values in zip(self._fields, rows, strict=True)
            for span in group.spans[field.name]
        ]
        moved = group.parameters(rows[[field.name for field in self._fields].index(self._displacement)])
        squares = [moved[:, part].square().sum(1) for _, part in group.measured]
        return torch.cat([part.double() for part in (torch.stack(largest), *squares)])

    def measured(self, block: int | None, numbers: Sequence[float] | None, count: int) -> "Measured | None":
        """Unpack the numbers of `measure`, after they were copied from the device."""
        if numbers is None:
            return None
        group = self._group(block)
        keys = [span.key(field.name) for field in self._fields for span in group.spans[field.name]]
        squares = torch.tensor(numbers[len(keys) :], dtype=torch.float64).reshape(-1, count).T
        return Measured(dict(zip(keys, numbers[: len(keys)], strict=True)), squares)

    def add(
        self,
        block: int | None,
        terms: Any,
        clients: Sequence[int],
        weights: Sequence[float],
        measured: "Measured | None" = None,
    ) -> None:
        """Add the terms of some clients with the same block, one row each.

        Raise `Diverged` if a value is not finite. The sums are then unusable, because nothing can be removed from them.
        """
        self.broken = True
        group, count = self._group(block), len(clients)
        rows = {field.name: value.reshape(count, -1) for field, value in zip(self._fields, terms, strict=True)}
        column = torch.tensor(weights, dtype=torch.float64, device=self._device) if self._weighted else None
        moved = group.parameters(rows[self._displacement])
        squares = self._squares(group, moved, measured)
        finite = True
        for field in self._fields:
            bounded = field.name == self._displacement and group.moved is None
            bound = _norm_bound(squares) if bounded else math.nan
            for span in group.spans[field.name]:
                key = span.key(field.name)
                values, total = rows[field.name][:, span.part], self._sum(key, _length(span.part))
                largest = bound if total.needs_one_level(bound) else None
                largest = largest if measured is None else measured.largest[key]
                finite &= total.add(values, None if field.summed else column, largest)
        if not finite:
            bad = next(k for k in range(count) if not all(bool(values[k].isfinite().all()) for values in rows.values()))
            where = "" if block is None else f" for block {block}"
            fix = divergence_fix(self._algorithm, "client_rule")
            raise Diverged(f"client {clients[bad]} uploaded non-finite values{where}; {fix}")
        self._measure(group, moved, squares)
        self._clients.extend(clients)
        self.broken = False

    def _squares(self, group: _Group, moved: Tensor, measured: "Measured | None") -> Tensor:
        """Return the squared norms of displacements: a row per client, a column per block, the shared block last."""
        squares = torch.zeros(len(moved), len(self._wire.layout.blocks) + 1, dtype=torch.float64)
        for position, (number, part) in enumerate(group.measured):
            found = _squared_norms(moved[:, part]) if measured is None else measured.squares[:, position]
            squares[:, number] = found
        return squares

    def _measure(self, group: _Group, moved: Tensor, squares: Tensor) -> None:
        """Add displacements, one row per client, and their squared norms to the measurements of the round."""
        self._sum(SumKey(SQUARES, -1), squares.shape[1]).add(squares)
        for span in group.spans[self._displacement]:
            values = moved[:, span.part]
            if self._weighted:
                self._sum(span.key(MOVED), values.shape[1]).add(values)
            if self._orders.measure_drift:
                self._sum(span.key(DRIFT), values.shape[1]).add(values * values)

    def take_clients(self) -> tuple[int, ...]:
        """Return the clients whose uploads are in the sums, and forget them. The caller takes the sums next."""
        clients, self._clients = tuple(self._clients), []
        return clients

    @property
    def keys(self) -> tuple[SumKey, ...]:
        """The keys of the sums so far."""
        return tuple(self._sums)

    def take(self, key: SumKey, on_device: bool = False) -> Levels:
        """Remove a sum and return it, as arrays or as tensors on the device."""
        return self._sums.pop(key).levels(on_device)

    def merge(self, partial: Partial) -> None:
        """Add the partial sums of other clients of the round."""
        for key, levels in partial.sums.items():
            self._sum(key, len(next(iter(levels.values())))).merge(levels)
        self._clients.extend(partial.clients)

    @property
    def clients(self) -> Sequence[int]:
        """The clients whose uploads are in the sums."""
        return self._clients

    def take_sum(self, key: SumKey) -> ExactSum | None:
        """Remove a sum and return it. None if no client contributed."""
        return self._sums.pop(key, None)

    def _sum(self, key: SumKey, size: int) -> ExactSum:
        if key not in self._sums:
            norms = key.name == SQUARES  # only a few numbers, computed on the CPU
            dtype, device = (torch.float64, torch.device("cpu")) if norms else (self._wire.dtype, self._device)
            self._sums[key] = ExactSum(size, self._orders.cohort, dtype, device)
        return self._sums[key]

    def _group(self, block: int | None) -> _Group:
        if block not in self._groups:
            wire, slices = self._wire, self._wire.coordinates(block)
            spans = {field.name: spans_of(wire, field.kind, block) for field in self._fields}
            displaced = wire.slices(self._displacement_kind, block)
            widest = [Span(0, 0, s, p) for s, p in _concatenated(displaced)]
            blocks = enumerate((*wire.layout.blocks, wire.layout.shared))
            measured = [
                (n, span.part_of(b.slice)) for n, b in blocks for span in widest if b.size and span.covers(b.slice)
            ]
            self._groups[block] = _Group(
                trained=None if self._trained is None else take(self._trained, slices),
                shared=wire.shared_span(block),
                spans=spans,
                measured=tuple(measured),
                moved=None if self._trained is None else take(self._trained, displaced),
            )
        return self._groups[block]


def spans_of(wire: Wire, kind: Kind, block: int | None) -> list[Span]:
    """Return the pieces of a term of this kind, for clients with this block."""
    if kind is Kind.SCALAR:
        return [Span(-1, 0, slice(0, 1), slice(0, 1))]
    whole, shared = kind is Kind.WHOLE or (kind is Kind.OWN and block is None), wire.layout.shared.slice
    spans = []
    for place, part in _concatenated(wire.slices(kind, block)):
        segment = -1 if whole else len(wire.layout.blocks) if place == shared or block is None else block
        for piece, start in enumerate(range(0, _length(place), PIECE)):
            stop = min(start + PIECE, _length(place))
            where = slice(place.start + start, place.start + stop), slice(part.start + start, part.start + stop)
            spans.append(Span(segment, piece, *where))
    return spans


def _concatenated(slices: Slices) -> Iterator[tuple[slice, slice]]:
    """Yield each slice of a vector with its position in the concatenation of all slices."""
    start = 0
    for s in slices:
        yield s, slice(start, start := start + _length(s))


def _length(s: slice) -> int:
    return int(s.stop - s.start)


def _norm_bound(squares: Tensor) -> float:
    """Return an upper bound on all coordinates from squared norms. NaN or infinity if a value is not finite.

    A rounded sum of squares is at least its largest addend. The factor covers the rounding of the square itself.
    """
    return 1.001 * math.sqrt(float(squares.sum(1).max()))


def _squared_norms(rows: Tensor) -> Tensor:
    """Return the squared norm of each row, on a CPU. The bits do not depend on the number of rows."""
    if rows.shape[1] <= _BUFFERED:
        array = rows.detach().numpy()
        return torch.from_numpy(np.einsum("ij,ij->i", array, array).astype(np.float64))
    return torch.tensor([float(torch.dot(row, row)) for row in rows], dtype=torch.float64)
