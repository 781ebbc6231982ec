"""The memory cache of a host's client states."""

import tempfile
from collections import OrderedDict

import numpy as np

from raybcgd.messages import StateRef
from raybcgd.record.states import State, StateFolder

_CHUNK_BYTES = 2**23
"""Memory is allocated in chunks of this size, so that a large budget costs nothing until it is used."""


class StateCache:
    """Caches the latest states of this host's clients, up to a memory budget. The others are read from their files.

    States are copied into rows of a few large arrays that are never freed. Vectors allocated one by one would fragment
    the heap, and a host would need about 50 % more memory.
    """

    def __init__(self, folder: StateFolder, budget_bytes: int) -> None:
        self._folder = folder
        self._budget = budget_bytes
        self._held: OrderedDict[int, tuple[StateRef, State]] = OrderedDict()
        self._free: list[State] = []
        self._allocated = 0
        self._spilled: dict[int, tuple[StateRef, State]] = {}
        self.bytes = 0

    def get(self, client: int, ref: StateRef) -> State:
        """Return a client's state at a committed version: a copy from memory, or read-only arrays from a file."""
        held = self._held.get(client)
        if held is not None and held[0] == ref:
            self._held.move_to_end(client)
            return {name: array.copy() for name, array in held[1].items()}
        spilled = self._spilled.get(client)
        return spilled[1] if spilled is not None and spilled[0] == ref else self._folder.read(client, ref)

    def end_call(self):
        pass

    def flush(self):
        pass

    def put(self, clients, version, states):
        return [
            self.put1(c, version, {n: np.ascontiguousarray(a[k]) for n, a in states.items()})
            for k, c in enumerate(clients)
        ]

    def put1(self, client: int, version: int, state: State) -> StateRef:
        """Write a new version to its file and cache it. It becomes valid when the round commits."""
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
        """Return a free or new row, or evict the least recently used state. None if the budget is less than a row."""
        size = _size(state)
        if not self._free:
            count = min((self._budget - self._allocated) // max(size, 1), -(-_CHUNK_BYTES // max(size, 1)))
            vectors = {name: np.empty((count, *array.shape), array.dtype) for name, array in state.items()}
            self._free = [{name: vector[k] for name, vector in vectors.items()} for k in range(count)]
            self._allocated += count * size
        if self._free:
            return self._free.pop()
        if not self._held:
            return None
        client, (ref, row) = self._held.popitem(last=False)
        self._spill(client, ref, row)
        return row

    def _spill(self, client: int, ref: StateRef, state: State) -> None:
        """Move a state from memory to the local disk, unless its file is already there."""
        if not self._folder.local:
            self._spilled[client] = (ref, _on_disk(state))


def _on_disk(state: State) -> State:
    """Return the same arrays, memory-mapped from unnamed files that disappear when this process ends."""
    mapped = {}
    for name, array in state.items():
        with tempfile.TemporaryFile() as file:
            array.tofile(file)
            file.flush()
            mapped[name] = np.memmap(file, array.dtype, "r", shape=array.shape) if array.size else array
    return mapped


def _size(state: State) -> int:
    return sum(array.nbytes for array in state.values())
