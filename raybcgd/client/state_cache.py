"""The latest states of a host's clients, in memory up to a budget."""

import tempfile
from collections import OrderedDict

import numpy as np

from raybcgd.messages import StateRef
from raybcgd.record.states import State, StateFolder

_CHUNK_BYTES = 2**23
"""Memory is allocated in pieces of this size, so that a large budget costs nothing until it is used."""


class StateCache:
    """The latest states of this host's clients, in memory up to a budget. The others stay in their files.

    States are copied into rows of a few large arrays that are never freed. Vectors allocated one by one would fragment
    the heap, and a host would need half as much memory again.
    """

    def __init__(self, folder: StateFolder, budget_bytes: int) -> None:
        self._folder = folder
        self._budget = budget_bytes
        self._held: OrderedDict[int, tuple[StateRef, State]] = OrderedDict()
        self._free: list[State] = []
        self._made = 0
        self._spilled: dict[int, tuple[StateRef, State]] = {}
        self.bytes = 0

    def get(self, client: int, ref: StateRef) -> State:
        """Return a copy of a client's state at a committed version."""
        held = self._held.get(client)
        if held is not None and held[0] == ref:
            self._held.move_to_end(client)
            return {name: array.copy() for name, array in held[1].items()}
        spilled = self._spilled.get(client)
        return spilled[1] if spilled is not None and spilled[0] == ref else self._folder.read(client, ref)

    def put(self, client: int, version: int, state: State) -> StateRef:
        """Write a new version to its file and cache it. It becomes current when the round commits."""
        ref = self._folder.write(client, version, state)
        self._spilled.pop(client, None)
        old = self._held.pop(client, None)
        row = self._row_for(state) if old is None else old[1]
        if row is None:
            self._spill(client, ref, state)
            return ref
        for name, array in state.items():
            row[name][...] = array
        self._held[client] = (ref, row)
        self.bytes = len(self._held) * _size(state)
        return ref

    def _row_for(self, state: State) -> State | None:
        """Return a free row, a new row, or that of the least recently used state; None if the budget holds no row."""
        size = _size(state)
        if not self._free:
            count = min((self._budget - self._made) // max(size, 1), -(-_CHUNK_BYTES // max(size, 1)))
            vectors = {name: np.empty((count, *array.shape), array.dtype) for name, array in state.items()}
            self._free = [{name: vector[k] for name, vector in vectors.items()} for k in range(count)]
            self._made += count * size
        if self._free:
            return self._free.pop()
        if not self._held:
            return None
        client, (ref, row) = self._held.popitem(last=False)
        self._spill(client, ref, row)
        return row

    def _spill(self, client: int, ref: StateRef, state: State) -> None:
        """Move a state from memory to this machine's disk."""
        if not self._folder.local:  # a local file is already on this disk
            self._spilled[client] = (ref, _on_disk(state))


def _on_disk(state: State) -> State:
    """Return the same arrays, memory-mapped from an unnamed file that disappears with this process."""
    mapped = {}
    for name, array in state.items():
        with tempfile.TemporaryFile() as file:
            array.tofile(file)
            file.flush()
            mapped[name] = np.memmap(file, array.dtype, "r", shape=array.shape) if array.size else array
    return mapped


def _size(state: State) -> int:
    return sum(array.nbytes for array in state.values())
