"""Writes client states to segments in the background."""

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from raybcgd.errors import RunError, first_line
from raybcgd.messages import StateRef
from raybcgd.record.states import SegmentFile, SegmentFolder, new_name

_MAX_PENDING = 2
"""Maximum writes in flight. More would only use memory: a host that trains faster than it writes must wait anyway."""


class SegmentWriter:
    """Writes rows to segments in one background thread. A segment without rows leaves no file."""

    def __init__(self, folder: SegmentFolder) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, "segment-writer")
        self._pending: deque[Future[None]] = deque()
        self._deferred: list[Callable[[], None]] = []
        """Steps that are not in the background thread yet. If `flush` comes next, it runs them itself."""
        self._name: str | None = None
        self._rows = 0
        # The background thread uses these two. Other threads use them only when it is idle.
        self._file: SegmentFile | None = None
        self._failed: dict[str, Exception] = {}

    def append(self, round_index: int, clients: Sequence[int], rows: np.ndarray) -> list[StateRef]:
        """Add rows to the open segment, or to a new one. The caller must not change `rows` afterwards."""
        if self._name is None:
            self._name, self._rows = new_name(round_index), 0
        checksums = [zlib.crc32(row) for row in rows]
        refs = [StateRef(self._name, self._rows + number, checksum) for number, checksum in enumerate(checksums)]
        self._rows += len(rows)
        self._start_deferred()
        self._defer(self._write, self._name, list(clients), rows, checksums)
        return refs

    def end(self) -> None:
        """Close the open segment in the background. The next row starts a new one."""
        if self._name is not None:
            self._defer(self._close, self._name)
            self._name = None
        self._start_deferred()

    def flush(self) -> None:
        """Close the open segment, and wait until everything is written. Raise an error if a write failed."""
        if self._name is not None:
            self._defer(self._close, self._name)
            self._name = None
        while self._pending:
            self._pending.popleft().result()
        for step in self._deferred:
            step()
        self._deferred.clear()
        if self._failed:
            name, error = self._failed.popitem()
            self._failed.clear()
            raise RunError(
                f"cannot write client states to {self._folder.path(name)} ({first_line(error)}); make room or repair "
                "the storage, then resume the run"
            )

    def _defer(self, work: Callable[..., None], *arguments: Any) -> None:
        self._deferred.append(partial(self._guarded, work, *arguments))

    def _start_deferred(self) -> None:
        """Run the deferred steps in the background."""
        for step in self._deferred:
            while len(self._pending) >= _MAX_PENDING:
                self._pending.popleft().result()
            self._pending.append(self._thread.submit(step))
        self._deferred.clear()

    def _guarded(self, work: Callable[..., None], name: str, *arguments: Any) -> None:
        """Run a step, unless an earlier step of the same segment failed."""
        if name in self._failed:
            return
        try:
            work(name, *arguments)
        except Exception as error:
            self._failed[name] = error
            if self._file is not None:
                self._file.discard()
                self._file = None

    def _write(self, name: str, clients: list[int], rows: np.ndarray, checksums: list[int]) -> None:
        if self._file is None:
            self._file = self._folder.create(name)
        self._file.append(clients, rows, checksums)

    def _close(self, name: str) -> None:
        assert self._file is not None, name
        self._file.close()
        self._file = None
