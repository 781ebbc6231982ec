"""The committed version of every client's state."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from raybcgd.messages import FRESH, StateRef


@dataclass
class Ledger:
    """Versions and checksums of the committed client states: two integers per client."""

    versions: np.ndarray
    checksums: np.ndarray
    superseded: list[tuple[int, int]] = field(default_factory=list)
    """(client, version) pairs that a later commit replaced and whose files may still exist."""

    @classmethod
    def fresh(cls, clients: int) -> "Ledger":
        """Return a ledger in which no client has taken part yet."""
        return cls(np.full(clients, FRESH.version, dtype=np.int64), np.zeros(clients, dtype=np.int64))

    def __getitem__(self, client: int) -> StateRef:
        return StateRef(int(self.versions[client]), int(self.checksums[client]))

    def commit(self, new: Mapping[int, StateRef]) -> None:
        """Record the new states of a round as committed."""
        for client, ref in new.items():
            if ref == FRESH:
                continue
            old = self[client]
            if old not in (FRESH, ref):
                self.superseded.append((client, old.version))
            self.versions[client], self.checksums[client] = ref

    def pairs(self) -> list[tuple[int, int]]:
        """Return (client, version) of every committed state."""
        clients = np.flatnonzero(self.versions != FRESH.version)
        return list(zip(clients.tolist(), self.versions[clients].tolist(), strict=True))

    @property
    def files(self) -> int:
        """Number of state files, committed and superseded."""
        return int(np.count_nonzero(self.versions != FRESH.version)) + len(self.superseded)

    def snapshot(self) -> "Ledger":
        """Return a copy for a checkpoint."""
        return Ledger(self.versions.copy(), self.checksums.copy())
