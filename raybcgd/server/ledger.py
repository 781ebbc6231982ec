"""Which version of every client's state is the committed one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from raybcgd.client.states import FRESH, StateRef


@dataclass
class Ledger:
    """Versions and checksums of the clients' committed states: two integers a client, whatever the states' size."""

    versions: np.ndarray
    checksums: np.ndarray
    superseded: list[tuple[int, int]] = field(default_factory=list)
    """(client, version) pairs that a later commit has replaced, and whose files may still exist."""

    @classmethod
    def fresh(cls, clients: int) -> "Ledger":
        """Nobody has taken part yet."""
        return cls(np.full(clients, FRESH.version, dtype=np.int64), np.zeros(clients, dtype=np.int64))

    def __getitem__(self, client: int) -> StateRef:
        return StateRef(int(self.versions[client]), int(self.checksums[client]))

    def commit(self, new: Mapping[int, StateRef]) -> None:
        """The round has happened: its new states are the committed ones."""
        for client, ref in new.items():
            if ref == FRESH:
                continue
            old = self[client]
            if old not in (FRESH, ref):
                self.superseded.append((client, old.version))
            self.versions[client], self.checksums[client] = ref

    def pairs(self) -> list[tuple[int, int]]:
        """(client, version) of every state that is committed."""
        there = np.flatnonzero(self.versions != FRESH.version)
        return list(zip(there.tolist(), self.versions[there].tolist(), strict=True))

    @property
    def files(self) -> int:
        """How many states are in files: the committed ones, and those that they have replaced."""
        return int(np.count_nonzero(self.versions != FRESH.version)) + len(self.superseded)

    def snapshot(self) -> "Ledger":
        """A copy for a checkpoint."""
        return Ledger(self.versions.copy(), self.checksums.copy())
