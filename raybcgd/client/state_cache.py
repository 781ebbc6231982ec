"""The memory cache of a host's client states."""

import tempfile
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from raybcgd.messages import FRESH, StateRef
from raybcgd.record.segment_writer import SegmentWriter
from raybcgd.record.states import SegmentFolder, is_merged


class StateCache:
    """Caches the latest states of this host's clients, up to a memory budget. The others are read from segments.

    States are rows of one array, which uses memory only where rows were written. If the segments are on another
    machine, rows that do not fit are moved to a local file.
    """

    def __init__(self, folder: SegmentFolder, budget_bytes: int, clients: int) -> None:
        self._folder, self._writer = folder, SegmentWriter(folder)
        self._row_bytes = folder.layout.row_bytes
        self._capacity = min(budget_bytes // self._row_bytes, clients)
        self._rows = np.empty((self._capacity, self._row_bytes), dtype=np.uint8)
        self._held: OrderedDict[int, tuple[StateRef, int]] = OrderedDict()
        self._free = list(range(self._capacity))[::-1]
        self._spilled = None if folder.local else _SpillFile(self._row_bytes)

    @property
    def bytes(self) -> int:
        """Memory in use."""
        return len(self._held) * self._row_bytes

    def gather(self, wanted: Sequence[tuple[int, StateRef]], fresh: np.ndarray) -> np.ndarray:
        """Return the states of (client, ref) pairs as new rows. `fresh` is the row for a client without a state."""
        rows = np.empty((len(wanted), self._row_bytes), dtype=np.uint8)
        hits, slots, new, missing = [], [], [], []
        for number, (client, ref) in enumerate(wanted):
            held = self._held.get(client)
            if ref == FRESH:
                new.append(number)
            elif held is not None and same_state(held[0], ref):
                self._held[client] = (ref, held[1])
                self._held.move_to_end(client)
                hits.append(number)
                slots.append(held[1])
            elif self._spilled is None or not self._spilled.read(client, ref, rows[number]):
                missing.append(number)
        if len(hits) == len(wanted):
            np.take(self._rows, slots, axis=0, out=rows, mode="clip")  # "clip" writes to `rows` without a buffer
        elif hits:
            rows[hits] = self._rows[slots]
        if new:
            rows[new] = fresh
        if missing:
            rows[missing] = self._folder.read([wanted[number] for number in missing])
        return rows

    def put(self, round_index: int, clients: Sequence[int], rows: np.ndarray) -> list[StateRef]:
        """Cache new states and write them in the background. They become valid when the round commits.

        The caller must not change `rows` afterwards.
        """
        refs = self._writer.append(round_index, clients, rows)
        uncached = max(0, len(clients) - self._capacity)
        slots = []
        for number, (client, ref) in enumerate(zip(clients, refs, strict=True)):
            if number < uncached:
                if client in self._held:
                    self._free.append(self._held.pop(client)[1])
                self._spill(client, ref, rows[number])
            else:
                slots.append(self._slot(client))
                self._held[client] = (ref, slots[-1])
        if slots:
            self._rows[slots] = rows[uncached:]
        return refs

    def end_call(self) -> None:
        """Close the segment of this call in the background."""
        self._writer.end()

    def flush(self) -> None:
        """Wait until all states are written, so that their round can commit. Raise an error if a write failed."""
        self._writer.flush()

    def _slot(self, client: int) -> int:
        """Return the client's slot, a free one, or that of the least recently used state."""
        if self._spilled is not None:
            self._spilled.remove(client)
        if client in self._held:
            return self._held.pop(client)[1]
        if self._free:
            return self._free.pop()
        other, (ref, slot) = self._held.popitem(last=False)
        self._spill(other, ref, self._rows[slot])
        return slot

    def _spill(self, client: int, ref: StateRef, row: np.ndarray) -> None:
        if self._spilled is not None:
            self._spilled.write(client, ref, row)


class _SpillFile:
    """Rows in an unnamed local file that disappears when this process ends."""

    def __init__(self, row_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - stays open as long as the process runs
        self._held: dict[int, tuple[StateRef, int]] = {}
        self._free: list[int] = []

    def write(self, client: int, ref: StateRef, row: np.ndarray) -> None:
        self.remove(client)
        slot = self._free.pop() if self._free else len(self._held)
        self._file.seek(slot * self._row_bytes)
        self._file.write(row.data)
        self._held[client] = (ref, slot)

    def read(self, client: int, ref: StateRef, row: np.ndarray) -> bool:
        """Read a client's state into `row`. Return False if it is not here."""
        held = self._held.get(client)
        if held is None or not same_state(held[0], ref):
            return False
        self._file.seek(held[1] * self._row_bytes)
        self._file.readinto(row.data)
        return True

    def remove(self, client: int) -> None:
        held = self._held.pop(client, None)
        if held is not None:
            self._free.append(held[1])


def same_state(held: StateRef, ref: StateRef) -> bool:
    """Return whether two refs of a client refer to the same state: the same row, or a copy made by compaction."""
    return held == ref or (is_merged(ref.segment) and held.checksum == ref.checksum)
