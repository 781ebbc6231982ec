"""Compaction: copies the states that are still needed from many segments to one, so that files do not accumulate."""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from raybcgd.errors import first_line
from raybcgd.messages import StateRef
from raybcgd.record.ledger import Ledger
from raybcgd.record.states import SegmentFolder, new_name

log = logging.getLogger(__name__)

MAX_POOR = 64
"""Maximum number of poor segments. A poor segment is small, or less than half of its states are still needed."""
_SMALL_SHARE = 1 / 32
_SMALL_BYTES = 2**26
"""A segment is small if its needed states take less than this share of all needed states, and less than this size."""
_MAX_DEAD_BYTES = 2**28
"""Compaction is due if the superseded states in poor segments exceed both this size and that of all needed states."""
_BATCH_BYTES = 2**24
_RETRY_ROUNDS = 64


class _Job(NamedTuple):
    """A compaction in progress."""

    name: str
    """The new segment."""
    clients: np.ndarray
    refs: Sequence[StateRef]
    segments: set[str]
    """The new segment and those that are copied."""
    result: "Future[None]"


class Compactor:
    """Merges segments in a background thread. The ledger changes only in `step`, between two rounds.

    Old segments stay until no checkpoint refers to them, so a run can be killed at any time.
    """

    def __init__(self, folder: SegmentFolder) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, "compaction")
        self._job: _Job | None = None
        self._stop = threading.Event()
        self._not_before = 0

    @property
    def in_use(self) -> set[str]:
        """The segments that a compaction reads or writes."""
        return set() if self._job is None else self._job.segments

    def step(self, ledger: Ledger, rounds: int) -> None:
        """Apply a finished compaction to the ledger, or start one if it is due."""
        job = self._job
        if job is None:
            if rounds >= self._not_before and (poor := poor_segments(ledger, self._folder.layout.row_bytes)):
                self._start(ledger, poor, rounds)
        elif job.result.done():
            self._job = None
            if (error := job.result.exception()) is None:
                ledger.move(job.clients, job.refs, job.name)
            else:
                self._not_before = rounds + _RETRY_ROUNDS
                log.warning("cannot compact the client states (%s); the run continues", first_line(error))

    def _start(self, ledger: Ledger, poor: Sequence[int], rounds: int) -> None:
        clients = np.flatnonzero(np.isin(ledger.segments, poor))
        clients = clients[np.lexsort((ledger.rows[clients], ledger.segments[clients]))]
        segments = [ledger.names[number] for number in ledger.segments[clients].tolist()]
        places = zip(segments, ledger.rows[clients].tolist(), ledger.checksums[clients].tolist(), strict=True)
        refs = [StateRef(*place) for place in places]
        name = new_name(max(0, rounds - 1), merged=True)
        result = self._thread.submit(self._copy, name, clients.tolist(), refs)
        self._job = _Job(name, clients, refs, {name, *segments}, result)

    def _copy(self, name: str, clients: Sequence[int], refs: Sequence[StateRef]) -> None:
        """Copy states to a new segment, in batches of bounded size."""
        batch = max(1, _BATCH_BYTES // self._folder.layout.row_bytes)
        segment = self._folder.create(name)
        try:
            for start in range(0, len(clients), batch):
                if self._stop.is_set():
                    raise InterruptedError("the run ended")
                part = slice(start, start + batch)
                rows = self._folder.read(list(zip(clients[part], refs[part], strict=True)))
                segment.append(clients[part], rows, [ref.checksum for ref in refs[part]])
            segment.close()
        except BaseException:
            segment.discard()
            raise

    def close(self) -> None:
        """Stop a compaction in progress, and delete its segment."""
        self._stop.set()
        self._thread.shutdown()
        if self._job is not None:
            self._folder.remove([self._job.name])


def poor_segments(ledger: Ledger, row_bytes: int) -> list[int]:
    """Return the segments to merge, as positions in `ledger.names`. Empty if compaction is not due."""
    live, sizes = ledger.live(), np.array(ledger.sizes, dtype=np.int64)
    small = live < min(_SMALL_SHARE * live.sum(), _SMALL_BYTES / row_bytes)
    poor = (live > 0) & ((2 * live < sizes) | small)
    dead_bytes = int((sizes - live)[poor].sum()) * row_bytes
    due = poor.sum() > MAX_POOR or dead_bytes > max(int(live.sum()) * row_bytes, _MAX_DEAD_BYTES)
    return np.flatnonzero(poor).tolist() if due else []
