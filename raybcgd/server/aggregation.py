"""The aggregate of a round: per coordinate, over the clients that sent it.

Sums are exact, so uploads and partial sums can arrive in any order and any grouping.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raybcgd.aggregation.exact import new_vector
from raybcgd.aggregation.reducer import DRIFT, MOVED, SQUARES, Reducer, Span, spans_of
from raybcgd.algorithms.api import Algorithm
from raybcgd.algorithms.contract import Kind, declared, displacement
from raybcgd.messages import Outcome, Partial, RoundOrders, SumKey
from raybcgd.plan.cohort import Member
from raybcgd.problem import Problem
from raybcgd.wire.upload import Slices, Wire

_PARALLEL_SIZE = 1 << 23
"""Minimum number of coordinates for which threads save more time than they cost."""
_MAX_THREADS = 8
"""More threads would only compete for memory bandwidth."""


class Expected(NamedTuple):
    """What the server knows about a member's work before its upload arrives."""

    member: Member
    steps: int
    weight: float
    """At most 1."""


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


class Aggregator:
    """Adds up the uploads and partial sums of one round."""

    def __init__(
        self, problem: Problem, wire: Wire, down: Any, orders: RoundOrders, expected: Sequence[Expected]
    ) -> None:
        self._algorithm, self._wire, self._orders = problem.algorithm, wire, orders
        self._device = down[0].device
        """The device of the server's vectors: an accelerator if a host in this process hands over its sums there."""
        name = displacement(self._algorithm.terms_type)
        (self._displacement,) = (field for field in declared(self._algorithm.terms_type) if field.name == name)
        self._weighted = problem.config.cohort.weighting == "samples"
        self._expected = {item.member.client: item for item in expected}
        self._trained = problem.trained_on(self._device)
        self._reducer = Reducer(problem, wire, down, orders, torch.device("cpu"))
        self._moved_squares = list(torch.zeros(len(wire.layout.blocks) + 1, dtype=torch.float64, device=self._device))
        self._blocks = [block for block in enumerate((*wire.layout.blocks, wire.layout.shared)) if block[1].size]

    def add(self, outcome: Outcome) -> None:
        """Add a client's upload, if it comes as bytes."""
        if outcome.payload is None:
            return
        (client, block), steps, weight = self._expected[outcome.client]
        terms = self._reducer.terms(block, self._wire.decode(outcome.payload, block), steps)
        self._reducer.add(block, terms, [client], [weight])

    def merge(self, partial: Partial) -> None:
        """Add a host's sum of its clients' uploads."""
        self._reducer.merge(partial)

    @property
    def clients(self) -> Sequence[int]:
        """The clients whose uploads were added."""
        return self._reducer.clients

    def result(self) -> Aggregate:
        """Return the aggregate of everything added so far, and free the sums."""
        weights, counts = self._weights()
        terms, moved = self._algorithm.terms_type, self._displacement
        total = {}
        for field in declared(terms):
            divisors = None if field.summed else weights
            total[field.name] = self._vector(
                field.name, field.kind, divisors, norms=field == moved and not self._weighted
            )
        if self._weighted:
            self._vector(MOVED, moved.kind, None, norms=True)
        drift = self._vector(DRIFT, moved.kind, counts) if self._orders.measure_drift else None
        uncovered = tuple(part.slice for number, part in self._blocks if not counts[number])
        if drift is not None:
            for place in uncovered:
                drift[place] = math.nan
        return Aggregate(terms(**total), uncovered, self._diversity(), drift)

    def _weights(self) -> tuple[list[float], list[int]]:
        """Return the sums of weights and the numbers of clients: per block, for the shared block, and in total."""
        shared = len(self._wire.layout.blocks)
        by_block: list[list[float]] = [[] for _ in range(shared + 2)]
        for client in self.clients:
            (_, block), _, weight = self._expected[client]
            for number in range(shared + 2) if block is None else (block, shared, shared + 1):
                by_block[number].append(weight)
        return [math.fsum(weights) for weights in by_block], [len(weights) for weights in by_block]

    def _vector(self, name: str, kind: Kind, divisors: Sequence[float] | None, norms: bool = False) -> Tensor:
        """Return a sum over the clients, divided by the divisor of each segment. 0 where no client contributed.

        With `norms`, add up the squared norm of the undivided sum per block.
        """
        size = 1 if kind is Kind.SCALAR else self._wire.layout.size
        result = new_vector(size, self._wire.dtype, self._device)
        if kind is Kind.SHARED:  # all other kinds cover every coordinate
            result.zero_()
        blocks = range(len(self._wire.layout.blocks)) if self._algorithm.blockwise else [None]
        # The shared block belongs to the uploads of every block.
        spans = {span.key(name): span for block in blocks for span in spans_of(self._wire, kind, block)}

        def divide(key: SumKey, span: Span) -> list[tuple[int, Tensor]]:
            found, target = self._reducer.take_sum(key), result[span.place]
            if found is None:
                target.zero_()
                return []
            # Segment -1 is the whole vector, and the last divisor is that of all clients.
            divisor, squares = 1.0 if divisors is None else divisors[span.segment], []
            for place, values in found.chunks():
                if norms:
                    squares += self._squared_norms(values, span.place.start + place.start)
                _divide(values, divisor, target[place])
            return squares

        for squares in _in_threads(divide, spans, len(result) if len(spans) > 1 else 0):
            for number, square in squares:
                self._moved_squares[number] = self._moved_squares[number] + square
        return result

    def _squared_norms(self, values: Tensor, start: int) -> list[tuple[int, Tensor]]:
        """Return the squared norm of a part of the sum of the displacements, for each of its blocks."""
        found = []
        for number, part in self._blocks:
            low, high = max(part.start, start), min(part.stop, start + len(values))
            if low < high:
                piece = values[low - start : high - start]
                if self._trained is not None:  # buffers do not count
                    piece = piece * self._trained[low:high]
                found.append((number, torch.dot(piece, piece)))
        return found

    def _diversity(self) -> tuple[float | None, ...]:
        """Return the drift diversity of each block."""
        found = self._reducer.take_sum(SumKey(SQUARES, -1))
        if found is None:
            return (None,) * len(self._moved_squares)
        squares, moved = found.total().tolist(), torch.stack(self._moved_squares).tolist()
        ratios = [square / (sum_square or math.nan) for square, sum_square in zip(squares, moved, strict=True)]
        return tuple(ratio if math.isfinite(ratio) else None for ratio in ratios)


def _in_threads(
    function: Callable[[SumKey, Span], list[tuple[int, Tensor]]], spans: Mapping[SumKey, Span], size: int
) -> Iterator[list[tuple[int, Tensor]]]:
    """Yield a function's result for each piece of a vector, in order.

    Long vectors use several threads, because torch itself uses only one core.
    """
    if size < _PARALLEL_SIZE:
        yield from map(function, spans, spans.values())
        return
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as threads:
        yield from threads.map(function, spans, spans.values())


def _divide(values: Tensor, divisor: float, out: Tensor) -> None:
    """Write values / divisor to a vector on the same device."""
    if values.device.type == "cpu":
        torch.div(values, divisor, out=out)
    else:  # divide by a tensor: accelerators multiply by the reciprocal of a number, which rounds differently
        out.copy_(values.div(torch.full_like(values[:1], divisor)).to(out.dtype))


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
