"""[Ray] Wait for calls to end and for hosts to start, and stop waiting when the driver cancels the run."""

import math
import queue
import time
from collections.abc import Callable
from typing import Any

_CANCEL_SECONDS = 0.5
"""How often to check, during a long wait, whether the driver has canceled the run."""


class Events:
    """The results that have arrived. Waiting does not take longer with more hosts, unlike with `ray.wait`."""

    def __init__(self, canceled: Callable[[], bool]) -> None:
        self._canceled = canceled
        self._arrived: queue.SimpleQueue[tuple[int, Any, Any]] = queue.SimpleQueue()

    def watch(self, number: int, ref: Any) -> None:
        """Add a result of host `number` to the queue when it arrives."""
        ref.future().add_done_callback(lambda future: self._arrived.put((number, ref, future)))

    def next(self, seconds: float = math.inf) -> tuple[int, Any, Any] | None:
        """Return (host, reference, future) of the next result, or None if none arrives in time."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return self._arrived.get(timeout=min(left, _CANCEL_SECONDS))
            except queue.Empty:
                self.raise_if_canceled()
                if left == 0.0:
                    return None

    def raise_if_canceled(self) -> None:
        """Raise KeyboardInterrupt if the driver has canceled the run."""
        if self._canceled():
            raise KeyboardInterrupt
