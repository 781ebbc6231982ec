"""Aggregate uploads: per coordinate, over the clients that sent it.

Uploads are added in cohort order, not in order of arrival, so that the sums have the same bits in every run.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise, starmap
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybcgd.algorithms.api import Algorithm, Task
from raybcgd.algorithms.contract import Kind, declared, displacement
from raybcgd.plan.cohort import Member
from raybcgd.problem import Problem
from raybcgd.wire.upload import Slices, Wire, restrict, take


class Expected(NamedTuple):
    """What the server knows about a member's work before its upload arrives."""

    member: Member
    steps: int
    weight: float


class Aggregate(NamedTuple):
    """The aggregated uploads of a round. m_i is the displacement of client i."""

    total: Any
    """The algorithm's terms, averaged or summed as declared."""
    uncovered: Slices
    """Coordinates that no client sent."""
    drift_diversity: tuple[float | None, ...]
    """Sum of |m_i|^2 divided by |sum of m_i|^2, per block, the shared block last. None if nothing moved."""
    drift: Tensor | None
    """Mean of m_i^2 per coordinate; NaN where no client sent it. None if not measured."""


class _Group(NamedTuple):
    """What all uploads of the same block have in common."""

    down: Any
    """The broadcast, on the uploaded coordinates."""
    trained: Tensor | None
    """For each uploaded coordinate: 1 for a parameter, 0 for a buffer. None without buffers."""
    spans: Mapping[str, tuple[tuple[slice, slice], ...]]
    """Per field: pairs of a slice of the flat vector and the matching slice of the uploaded field."""
    measured: Sequence[tuple[int, slice, slice]]
    """The blocks of the displacement: number, slice of the flat vector, slice of the uploaded field."""
    shared: slice
    """The shared block, among the uploaded coordinates."""
    blocks: list[int]
    """Numbers of the uploaded blocks, the shared block last."""


class Aggregator:
    """Adds up the uploads of one round."""

    def __init__(
        self,
        problem: Problem,
        wire: Wire,
        down: Any,
        lr: float,
        expected: Sequence[Expected],
        measure_drift: bool = False,
    ) -> None:
        algorithm = problem.algorithm
        self._algorithm, self._wire, self._down, self._lr, self._trained = algorithm, wire, down, lr, problem.trained
        self._expected = expected
        self._next = 0
        self._waiting: dict[int, np.ndarray | None] = {}
        self._fields, self._displacement = declared(algorithm.terms_type), displacement(algorithm.terms_type)
        self._sums = {
            field.name: torch.zeros(1 if field.kind is Kind.SCALAR else wire.layout.size, dtype=wire.dtype)
            for field in self._fields
        }
        blocks = (*wire.layout.blocks, wire.layout.shared)
        self._blocks = [(number, block) for number, block in enumerate(blocks) if block.size]
        self._weight = 0.0
        self._weights, self._counts, self._squares = ([0.0] * len(blocks) for _ in range(3))
        unweighted = all(item.weight == 1.0 for item in expected)
        # The unweighted sum of the displacements, for drift diversity. With equal weights, `_sums` contains it.
        self._moved = None if unweighted else torch.zeros(wire.layout.size, dtype=wire.dtype)
        self._drift = torch.zeros(wire.layout.size, dtype=wire.dtype) if measure_drift else None
        self._groups: dict[int | None, _Group] = {}

    def add(self, client: int, payload: np.ndarray | None) -> None:
        """Receive a client's upload, or None if it was dropped. Add all uploads that are next in cohort order."""
        self._waiting[client] = payload
        while self._next < len(self._expected):
            expected = self._expected[self._next]
            if expected.member.client not in self._waiting:
                return
            ready = self._waiting.pop(expected.member.client)
            if ready is not None:
                self._fold(expected, ready)
            self._next += 1

    def _fold(self, expected: Expected, payload: np.ndarray) -> None:
        client, block = expected.member
        group = self._group(block)
        task = Task(expected.steps, self._lr, group.trained, group.shared)
        terms = self._algorithm.terms(self._wire.decode(payload, block), group.down, task)
        for number in group.blocks:
            self._weights[number] += expected.weight
            self._counts[number] += 1
        squares = self._measure(getattr(terms, self._displacement), group)
        for field, values in zip(self._fields, terms, strict=True):
            # A non-finite value makes the sum non-finite, but so does an overflow. Only then check every value.
            total = squares if field.name == self._displacement else float(values.sum())
            if not math.isfinite(total) and not bool(torch.isfinite(values).all()):
                where = "" if block is None else f" for block {block}"
                raise FloatingPointError(f"client {client} uploaded non-finite values{where}; lower algorithm.lr")
            weight = 1.0 if field.summed else expected.weight
            accumulator = self._sums[field.name]
            for place, span in group.spans[field.name]:
                accumulator[place].add_(values[span], alpha=weight)
        self._weight += expected.weight

    def _group(self, block: int | None) -> _Group:
        """Return what all uploads of a block have in common."""
        if block not in self._groups:
            wire, slices, scalar = self._wire, self._wire.coordinates(block), (slice(0, 1),)
            spans = {
                field.name: _concatenated(scalar if field.kind is Kind.SCALAR else wire.slices(field.kind, block))
                for field in self._fields
            }
            measured = []
            for place, span in spans[self._displacement]:
                shift = span.start - place.start
                for number, part in self._blocks:
                    if place.start <= part.start and part.stop <= place.stop:
                        measured.append((number, part.slice, slice(part.start + shift, part.stop + shift)))
            own = (block, len(wire.layout.blocks))
            self._groups[block] = _Group(
                down=restrict(self._down, slices),
                trained=None if self._trained is None else take(self._trained, slices),
                spans=spans,
                measured=measured,
                shared=wire.shared_span(block),
                blocks=[number for number, _ in self._blocks if block is None or number in own],
            )
        return self._groups[block]

    def _measure(self, values: Tensor, group: _Group) -> float:
        """Add a displacement to the measurements of its blocks. Return its squared norm."""
        total = 0.0
        for number, place, span in group.measured:
            piece = values[span]
            square = float(torch.dot(piece, piece))
            total += square
            self._squares[number] += square
            if self._moved is not None:
                self._moved[place].add_(piece)
            if self._drift is not None:
                self._drift[place].addcmul_(piece, piece)
        return total

    def result(self) -> Aggregate:
        """Return the aggregate, once `add` has been called for every expected client."""
        if self._next != len(self._expected):
            raise AssertionError(f"{len(self._expected) - self._next} uploads are still missing")
        diversity: list[float | None] = [None] * len(self._squares)
        sums = self._sums[self._displacement] if self._moved is None else self._moved
        for number, part in self._blocks:
            moved = sums[part.slice]
            square = float(torch.dot(moved, moved))
            if self._drift is not None:
                self._drift[part.slice] /= self._counts[number] or float("nan")
            diversity[number] = self._squares[number] / square if square > 0 else None
        for field in self._fields:
            if field.summed:
                continue
            if field.kind in (Kind.WHOLE, Kind.SCALAR):
                self._sums[field.name] /= self._weight or 1.0
            else:
                for number, part in self._blocks:
                    self._sums[field.name][part.slice] /= self._weights[number] or 1.0
        uncovered = tuple(part.slice for number, part in self._blocks if self._weights[number] == 0)
        return Aggregate(self._algorithm.terms_type(**self._sums), uncovered, tuple(diversity), self._drift)


def _concatenated(slices: Slices) -> tuple[tuple[slice, slice], ...]:
    """Return each slice of a vector, paired with its position in the concatenation of all slices."""
    ends = accumulate((s.stop - s.start for s in slices), initial=0)
    return tuple(zip(slices, starmap(slice, pairwise(ends)), strict=True))


def average_buffers(algorithm: Algorithm, before: Any, after: Any, total: Any, trained: Tensor | None) -> Any:
    """Return the new server state with buffers averaged over clients. A server rule could make a variance negative."""
    if trained is None:
        return after
    moved = getattr(total, displacement(algorithm.terms_type))
    return after._replace(x=torch.where(trained > 0, after.x, before.x + moved))


def keep_uncovered(algorithm: Algorithm, before: Any, after: Any, uncovered: Slices) -> Any:
    """Return the new server state with its old values on coordinates that no client uploaded."""
    if not uncovered:
        return after
    kept = {}
    for field in declared(algorithm.Server):
        if field.per_coordinate:
            kept[field.name] = getattr(after, field.name).clone()
            for s in uncovered:
                kept[field.name][..., s] = getattr(before, field.name)[..., s]
    return after._replace(**kept)
