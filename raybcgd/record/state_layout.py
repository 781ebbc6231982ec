"""The layout of a client state: named arrays in one row of bytes."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

State = dict[str, np.ndarray]
"""Named arrays: the algorithm's client state, and the residuals of a codec with error feedback."""
_ALIGNMENT = 16
"""Arrays start at multiples of this many bytes."""


class StateArray(NamedTuple):
    """One array of a client state."""

    name: str
    dtype: str
    """As a NumPy type string with the byte order, such as "<f4"."""
    shape: tuple[int, ...]


class StateLayout:
    """Where each array of a client state is in a row. All rows of a run have the same size."""

    def __init__(self, arrays: Iterable[StateArray]) -> None:
        self.arrays = tuple(arrays)
        self._offsets: list[int] = []
        self.row_bytes = 0
        for array in self.arrays:
            self._offsets.append(self.row_bytes)
            size = np.dtype(array.dtype).itemsize * math.prod(array.shape)
            self.row_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT

    def views(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return views of the arrays in `rows` (uint8, one row per client), each with one row per client."""
        views = {}
        for array, offset in zip(self.arrays, self._offsets, strict=True):
            dtype = np.dtype(array.dtype)
            inner = np.empty(array.shape, dtype).strides if 0 not in array.shape else (0,) * len(array.shape)
            views[array.name] = np.ndarray(
                (len(rows), *array.shape), dtype, rows, offset if len(rows) else 0, (self.row_bytes, *inner)
            )
        return views

    def pack(self, states: Sequence[State]) -> np.ndarray:
        """Return new rows that hold these states."""
        rows = np.zeros((len(states), self.row_bytes), dtype=np.uint8)
        for name, view in self.views(rows).items():
            for number, state in enumerate(states):
                if state[name].shape != view.shape[1:]:
                    found = f"the state {name} has the shape {state[name].shape}"
                    raise ValueError(f"{found}; return it with the declared shape {view.shape[1:]}")
                view[number] = state[name]
        return rows
