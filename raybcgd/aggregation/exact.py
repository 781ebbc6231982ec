"""Sums of vectors that do not depend on order or grouping, because every partial sum is exact.

Each addend is rounded once to a multiple of the grid g_0 = 2^e, by a rule that depends only on its value. The rounded
addend is then split into levels: level k holds a multiple of g_k = 2^(e + k W) of magnitude at most 2^(W - 1) g_k.

Proof that the sums are exact. A float64 represents every multiple of g_k up to 2^53 g_k. A sum of n <= 2^s parts of
level k is a multiple of g_k of magnitude at most 2^(s + W - 1) g_k, and so is every partial sum, in any order. With
W = 53 - s this is at most 2^52 g_k, so no addition rounds.

Proof that the split is exact. (r + C) - C with C = 1.5 * 2^52 g rounds r to a multiple of g if |r| <= 2^51 g, because
r + C lies between 2^52 g and 2^53 g, where the spacing of float64 numbers is g, and the subtraction is exact. The
highest level k is chosen such that |r| <= 2^(W - 1) g_k, and W <= 51. The rest r - round(r) is at most g_k / 2 in
magnitude, which is 2^(W - 1) g_(k - 1), as level k - 1 requires. It is exact, because it is a multiple of the spacing
of r and not larger than r.

Proof that pairs are exact. If p and q need only level 0, p + C and q - C round p and q to the same multiples of g_0 as
(p + C) - C and (q + C) - C, because C is an even multiple of g_0. In their sum, C cancels. The result is a multiple of
g_0 of magnitude at most 2^W g_0, so the addition does not round.

At the end, the levels are added from the highest to the lowest. The result is a function of the set of addends.

The grid 2^-40 keeps values of 1e-5 in float32 precision. With 1 000 addends, W is 43, and values of 4 or more need
level 1. Levels are allocated when they are first needed. Sums of float64 vectors use the grid 2^-90. Values that are
not finite, or whose magnitude is 2^900 or more, make their coordinate NaN.
"""

import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

Levels = Mapping[int, Any]
"""A partial sum, one vector per level: plain arrays, or tensors on a device if they stay in this process."""

_CACHED = 1 << 17
"""How many float64 numbers stay in a CPU's cache while they are added."""
_CHUNK = {"cpu": _CACHED}
"""Elements per pass. Accelerators use larger chunks, to launch fewer kernels."""
_PAIRED_SIZE = 1 << 20
"""Minimum length of rows that are added in pairs."""
_of_thread = threading.local()
"""Holds the buffer of each thread."""
_MERGED_PARTS = 8
"""Maximum number of merged sums that are kept separate. They may be in shared memory; adding them up makes a copy."""
_GRID_EXPONENT = {torch.float32: -40, torch.float64: -90}
_LIMIT = 2.0**900
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


@contextmanager
def chunks_of_an_accelerator() -> Iterator[None]:
    """Use an accelerator's chunk size on the CPU, to measure how much memory it needs."""
    saved = _CHUNK.pop("cpu")
    try:
        yield
    finally:
        _CHUNK["cpu"] = saved


class ExactSum:
    """The exact sum of at most `addends` vectors. Merging two such sums is exact as well."""

    def __init__(self, size: int, addends: int, dtype: torch.dtype, device: torch.device | None = None) -> None:
        self.size, self.dtype = size, dtype
        self._device = device or torch.device("cpu")
        self._width = min(51, 53 - math.ceil(math.log2(max(addends, 1))))
        self._exponent = _GRID_EXPONENT[dtype]
        self._constant = self._rounding_constant(0)
        self._levels: dict[int, Tensor] = {}
        self._waiting: Tensor | None = None
        """A long row that waits to be added with the next one, so that the sum is read and written half as often."""
        self._merged: dict[int, list[np.ndarray]] = {}
        self._handed: dict[int, Tensor] = {}
        """The levels that a host in this process handed over, on its accelerator."""

    def add(self, rows: Tensor, weights: Tensor | None = None, largest: float | None = None) -> bool:
        """Add the rows of a matrix, each times its weight of at most 1. Return whether all values are finite.

        `largest` is an upper bound on the magnitudes; with it, nothing is read from the device. If there is only one
        row, the caller must not change it afterwards, because it may be added later.
        """
        single = len(rows) == 1 and weights is None and self.size >= _PAIRED_SIZE and self._device.type == "cpu"
        if single and largest is not None and self.needs_one_level(largest):
            self._add_in_pairs(rows[0])
            return True
        finite, first = True, self._start_if_empty()
        step = max(1, _CHUNK.get(self._device.type, 1 << 24) // max(1, len(rows)))
        for start in range(0, self.size, step):
            finite &= self._add_at(start, rows[:, start : start + step], weights, largest, first)
        return finite

    def _start_if_empty(self) -> bool:
        """Return whether nothing has been added yet. If so, allocate the lowest level, for the caller to overwrite."""
        first = not self._levels
        if first:
            self._levels[0] = new_vector(self.size, torch.float64, self._device)
        return first

    def _add_in_pairs(self, row: Tensor) -> None:
        """Add a row of values that need only the lowest level, together with the waiting row."""
        if self._waiting is None:
            self._waiting = row
            return
        waiting, self._waiting, first = self._waiting, None, self._start_if_empty()
        for start in range(0, self.size, _CACHED):
            place = slice(start, min(start + _CACHED, self.size))
            one, other = _buffer((2, place.stop - start), self._device)
            one.copy_(waiting[place]).add_(self._constant)
            other.copy_(row[place]).sub_(self._constant)
            lowest = self._levels[0][place]
            torch.add(one, other, out=lowest) if first else lowest.add_(one.add_(other))

    def _flush(self) -> None:
        """Add the waiting row, if there is one."""
        if self._waiting is not None:
            self._add_in_pairs(torch.zeros(1).expand(self.size))

    def _add_at(self, start: int, rows: Tensor, weights: Tensor | None, largest: float | None, first: bool) -> bool:
        """Add rows to the coordinates from `start` on, or store their sum if they are the first."""
        rest = _buffer(rows.shape, self._device).copy_(rows)
        place = slice(start, start + rows.shape[1])
        if largest is None:
            low, high = torch.stack(torch.aminmax(rest)).tolist()
            largest = max(-low, high)
        if weights is not None:
            rest.mul_(weights[:, None])
        finite, broken = math.isfinite(largest), None
        if not largest < _LIMIT:  # also true for NaN
            broken = ~(rest.abs() < _LIMIT)
            rest.masked_fill_(broken, 0.0)
            largest = float(rest.abs().max())
        for level in range(self._highest(largest), 0, -1):
            constant = self._rounding_constant(level)
            part = (rest + constant).sub_(constant)
            self._level(level)[place].add_(part.sum(0))
            rest.sub_(part)
        rest.add_(self._constant).sub_(self._constant)
        lowest, added = self._levels[0][place], rest[0] if len(rest) == 1 else rest.sum(0)
        lowest.copy_(added) if first else lowest.add_(added)
        if broken is not None:
            lowest.masked_fill_(broken.any(0), math.nan)
        return finite

    def needs_one_level(self, bound: float) -> bool:
        """Return whether values up to `bound` need only the lowest level."""
        return bound < _LIMIT and self._highest(bound) == 0

    def _rounding_constant(self, level: int) -> float:
        """Return the C for which (r + C) - C rounds r to the grid of a level."""
        return float(1.5 * 2.0 ** (52 + self._exponent + level * self._width))

    def _highest(self, largest: float) -> int:
        """Return the highest level that values up to `largest` need. Higher levels would be zero."""
        if largest == 0:
            return 0
        bits = math.frexp(largest)[1] - self._exponent  # largest < 2^bits g_0
        return max(0, -(-(bits - self._width + 1) // self._width))

    def _level(self, level: int) -> Tensor:
        if level not in self._levels:
            self._levels[level] = new_vector(self.size, torch.float64, self._device).zero_()
        return self._levels[level]

    def merge(self, levels: Levels) -> None:
        """Add another sum of the same kind. Both together must not have more than `addends` addends.

        The caller must not change the arrays afterwards: they are not copied, and are added when the sum is read.
        """
        for level, part in levels.items():
            if isinstance(part, Tensor):
                assert level not in self._handed, "only the host in this process hands over tensors"
                self._handed[level] = part
                continue
            merged = self._merged.setdefault(level, [])
            merged.append(part)
            if len(merged) > _MERGED_PARTS:
                self._merged[level] = [merge_levels([{0: part} for part in merged])[0]]

    def levels(self, on_device: bool = False) -> Levels:
        """Return the sum so far for `merge`: as arrays, or with `on_device` as tensors if it is on an accelerator."""
        self._flush()
        if on_device and self._device.type != "cpu":
            return dict(self._levels)
        own = {level: part.cpu().numpy() for level, part in self._levels.items()}
        merged = [{level: part} for level, parts in self._merged.items() for part in parts]
        return merge_levels([own, *merged]) if merged else own

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the sum in float64, in chunks that fit into a CPU's cache. The caller must not change them.

        A sum that was handed over on an accelerator stays there, as one chunk.
        """
        self._flush()
        if self._handed:
            total = torch.zeros_like(next(iter(self._handed.values())))
            for level in sorted(self._handed, reverse=True):
                total += self._handed[level]
            yield slice(0, self.size), total
            return
        own = {level: part.cpu().numpy() for level, part in self._levels.items()}
        order = sorted({*own, *self._merged}, reverse=True)
        for start in range(0, self.size, 2 * _CACHED):
            place = slice(start, min(start + 2 * _CACHED, self.size))
            summed: np.ndarray | None = None
            for level in order:
                parts = [*self._merged.get(level, ()), *([own[level]] if level in own else [])]
                # Parts of the same level add exactly, in any order. Only the sum over the levels is rounded.
                exact = np.add(parts[0][place], parts[1][place]) if len(parts) > 1 else parts[0][place]
                for part in parts[2:]:
                    exact += part[place]
                summed = exact if summed is None else summed + exact
            yield place, torch.as_tensor(np.zeros(place.stop - start) if summed is None else summed)

    def total(self) -> Tensor:
        """Return the sum in float64, on the CPU."""
        return torch.cat([torch.empty(0, dtype=torch.float64), *(chunk.cpu() for _, chunk in self.chunks())])


def _buffer(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return an uninitialised float64 tensor. On a CPU, small ones are in memory that this thread keeps.

    glibc maps new memory for every chunk, which takes longer than adding its values.
    """
    size = math.prod(shape)
    if device.type not in _CHUNK or size > 2 * _CACHED:
        return torch.empty(shape, dtype=torch.float64, device=device)
    if not hasattr(_of_thread, "buffer"):
        _of_thread.buffer = torch.empty(2 * _CACHED, dtype=torch.float64)
    buffer: Tensor = _of_thread.buffer[:size].view(shape)
    return buffer


def new_vector(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an uninitialised vector. On a CPU, NumPy allocates it, because its huge pages are much faster."""
    if device.type != "cpu":
        return torch.empty(size, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(size, _NUMPY[dtype]))


def merge_levels(sums: Iterable[Levels]) -> Levels:
    """Return the sum of partial sums of the same kind."""
    total: dict[int, np.ndarray] = {}
    for levels in sums:
        for level, part in levels.items():
            if level not in total:
                total[level] = part.copy()
            else:
                total[level] += part
    return total
