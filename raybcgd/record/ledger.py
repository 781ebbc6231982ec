"""The committed state of every client."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from raybcgd.messages import FRESH, StateRef

_FRESH = -1


@dataclass
class Ledger:
    """Where the committed client states are: a segment, a row and a checksum per client."""

    segments: np.ndarray
    """Positions in `names`, int32; -1 for a client that has not taken part yet."""
    rows: np.ndarray
    """Rows in these segments, int32."""
    checksums: np.ndarray
    """uint32."""
    names: list[str] = field(default_factory=list)
    """The segments that exist. Old ones may hold no committed state any more."""
    sizes: list[int] = field(default_factory=list)
    """Rows of these segments, committed or not."""

    @classmethod
    def fresh(cls, clients: int) -> "Ledger":
        """Return a ledger in which no client has taken part yet."""
        empty = np.zeros(clients, dtype=np.int32)
        return cls(np.full(clients, _FRESH, dtype=np.int32), empty, empty.astype(np.uint32))

    def __getitem__(self, client: int) -> StateRef:
        number = self.segments[client]
        if number == _FRESH:
            return FRESH
        return StateRef(self.names[number], int(self.rows[client]), int(self.checksums[client]))

    @property
    def clients(self) -> np.ndarray:
        """The clients that have taken part."""
        return np.flatnonzero(self.segments != _FRESH)

    def commit(self, new: Mapping[int, StateRef]) -> None:
        """Record the new states of a round as committed."""
        changed = {client: ref for client, ref in new.items() if ref != FRESH}
        if not changed:
            return
        numbers = {name: number for number, name in enumerate(self.names)}
        for ref in changed.values():
            if ref.segment not in numbers:
                numbers[ref.segment] = len(self.names)
                self.names.append(ref.segment)
                self.sizes.append(0)
            number = numbers[ref.segment]
            self.sizes[number] = max(self.sizes[number], ref.row + 1)
        clients = list(changed)
        self.segments[clients] = [numbers[ref.segment] for ref in changed.values()]
        self.rows[clients] = [ref.row for ref in changed.values()]
        self.checksums[clients] = [ref.checksum for ref in changed.values()]

    def live(self) -> np.ndarray:
        """Return the number of committed states in each segment."""
        return np.bincount(self.segments[self.clients], minlength=len(self.names))

    def needed(self) -> set[str]:
        """Return the segments that hold committed states."""
        return {name for name, live in zip(self.names, self.live().tolist(), strict=True) if live}

    @property
    def stored_rows(self) -> int:
        """Rows in all segments, committed or not."""
        return sum(self.sizes)

    def move(self, clients: np.ndarray, old: Sequence[StateRef], new: str) -> None:
        """Refer to copies of states: row k of the segment `new` is a copy of `old[k]`, a state of `clients[k]`.

        Clients that have a newer state by now keep it.
        """
        numbers = {name: number for number, name in enumerate(self.names)}
        segments = np.array([numbers.get(ref.segment, _FRESH) for ref in old], dtype=np.int32)
        same = (self.segments[clients] == segments) & (self.rows[clients] == [ref.row for ref in old])
        self.segments[clients[same]] = len(self.names)
        self.rows[clients[same]] = np.flatnonzero(same)
        self.names.append(new)
        self.sizes.append(len(clients))

    def forget(self, removed: Iterable[str]) -> None:
        """Remove deleted segments from the ledger."""
        gone = set(removed)
        self._keep([number for number, name in enumerate(self.names) if name not in gone])

    def snapshot(self) -> "Ledger":
        """Return a copy for a checkpoint, with only the segments that it needs."""
        copy = Ledger(self.segments.copy(), self.rows.copy(), self.checksums.copy(), self.names, self.sizes)
        copy._keep(np.flatnonzero(self.live()).tolist())
        return copy

    def _keep(self, numbers: Sequence[int]) -> None:
        renumbered = np.full(len(self.names) + 1, _FRESH, dtype=np.int32)  # the last entry, -1, is for fresh clients
        renumbered[list(numbers)] = np.arange(len(numbers))
        self.segments = renumbered[self.segments]
        self.names = [self.names[number] for number in numbers]
        self.sizes = [self.sizes[number] for number in numbers]
