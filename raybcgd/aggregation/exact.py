"""Sums of vectors that do not depend on order or grouping, because every partial sum is exact.

Each addend is rounded once to a multiple of the grid g_0 = 2^e, by a rule that looks at its value alone. The rounded
addend is then split into levels: level k holds a multiple of g_k = 2^(e + k W) of magnitude at most 2^(W - 1) g_k.

Proof that the sums are exact. A float64 represents every multiple of g_k up to 2^53 g_k. A sum of n <= 2^s parts of
level k is a multiple of g_k of magnitude at most 2^(s + W - 1) g_k, and so is every partial sum, in any order. With
W = 53 - s this is at most 2^52 g_k, so no addition rounds.

Proof that the split is exact. (r + C) - C with C = 1.5 * 2^52 g rounds r to a multiple of g if |r| <= 2^51 g, because
r + C lies between 2^52 g and 2^53 g, where the spacing of float64 numbers is g, and the subtraction is exact. The
highest level k is chosen such that |r| <= 2^(W - 1) g_k, and W <= 51. The rest r - round(r) is at most g_k / 2 in
magnitude, which is 2^(W - 1) g_(k - 1), as level k - 1 requires. It is exact, because it is a multiple of the spacing
of r and not larger than r.

At the end, the levels are added from the highest to the lowest. The result is a function of the set of addends.

The grid 2^-40 keeps values of 1e-5 in float32 precision. With 1 000 addends, W is 43, and level 1, which is allocated
when it is first needed, starts at values of 4. Sums of float64 vectors use the grid 2^-90. Values that are not finite,
or of 2^900 and more, make their coordinate NaN.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

Levels = Mapping[int, np.ndarray]
"""A partial sum as plain arrays: one per level."""

_CHUNK = {"cpu": 1 << 16}
"""Elements per pass. On a CPU, the float64 buffer should stay in the cache; elsewhere, kernels should be few."""
_GRID_EXPONENT = {torch.float32: -40, torch.float64: -90}
_LIMIT = 2.0**900


class ExactSum:
    """The exact sum of at most `addends` vectors. Merging two such sums is exact as well."""

    def __init__(self, size: int, addends: int, dtype: torch.dtype, device: torch.device | None = None) -> None:
        self.size, self.dtype = size, dtype
        self._device = device or torch.device("cpu")
        self._width = min(51, 53 - math.ceil(math.log2(max(addends, 1))))
        self._exponent = _GRID_EXPONENT[dtype]
        self._constant = self._rounding_constant(0)
        self._levels: dict[int, Tensor] = {}
        self._writable: set[int] = set()
        """The levels that do not share memory with a merged sum."""

    def add(self, rows: Tensor, weights: Tensor | None = None) -> None:
        """Add the rows of a matrix, each times its weight of at most 1."""
        step = max(1, _CHUNK.get(self._device.type, 1 << 24) // max(1, len(rows)))
        for start in range(0, self.size, step):
            place = slice(start, start + step)
            self._add_chunk(rows[:, place], weights, place)

    def _add_chunk(self, rows: Tensor, weights: Tensor | None, place: slice) -> None:
        low, high = torch.stack(torch.aminmax(rows)).tolist()
        rest = rows.to(torch.float64, copy=True)
        if weights is not None:
            rest.mul_(weights[:, None])
        largest = max(-low, high)
        if not largest < _LIMIT:  # also if it is NaN
            broken = ~(rest.abs() < _LIMIT)
            self._level(0)[place].add_(torch.zeros_like(rest).masked_fill_(broken, math.nan).sum(0))
            rest.masked_fill_(broken, 0.0)
            largest = float(rest.abs().max())
        for level in range(self._highest(largest), 0, -1):
            constant = self._rounding_constant(level)
            part = (rest + constant).sub_(constant)
            self._level(level)[place].add_(part.sum(0))
            rest.sub_(part)
        rest.add_(self._constant).sub_(self._constant)
        self._level(0)[place].add_(rest[0] if len(rest) == 1 else rest.sum(0))

    def _rounding_constant(self, level: int) -> float:
        """Return C, for which (r + C) - C rounds r to the grid of a level."""
        return float(1.5 * 2.0 ** (52 + self._exponent + level * self._width))

    def _highest(self, largest: float) -> int:
        """Return the highest level that a value needs. A higher one would only add zeros."""
        if largest == 0:
            return 0
        bits = math.frexp(largest)[1] - self._exponent  # largest < 2^bits g_0
        return max(0, -(-(bits - self._width + 1) // self._width))

    def _level(self, level: int) -> Tensor:
        if level not in self._levels:
            self._levels[level] = torch.zeros(self.size, dtype=torch.float64, device=self._device)
        elif level not in self._writable:
            self._levels[level] = self._levels[level].clone()
        self._writable.add(level)
        return self._levels[level]

    def merge(self, levels: Levels) -> None:
        """Add another sum of the same kind. All addends together must not exceed `addends`."""
        for level, part in levels.items():
            values = torch.from_numpy(part).to(self._device)
            if level not in self._levels:
                self._levels[level] = values  # not copied: it may be in shared memory
            elif level in self._writable:
                self._levels[level].add_(values)
            else:
                self._levels[level] = self._levels[level] + values
                self._writable.add(level)

    def levels(self) -> Levels:
        """Return the sum so far as arrays that `merge` takes."""
        return {level: part.cpu().numpy() for level, part in self._levels.items()}

    def total(self) -> Tensor:
        """Return the sum in float64, on the CPU. The caller must not change it."""
        highest, *rest = [self._levels[level].cpu() for level in sorted(self._levels, reverse=True)] or [self._level(0)]
        for part in rest:
            highest = highest + part
        return highest


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
