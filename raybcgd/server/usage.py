"""[Ray] How full the object store is."""

import time

import ray

_LOOK_SECONDS = 5.0
"""Asking takes milliseconds, which short rounds would notice."""


class StoreUsage:
    """Bytes in use and in all, over the nodes of the cluster, asked for every few seconds."""

    def __init__(self) -> None:
        self._looked: float | None = None
        self._seen = (0, 0)

    def look(self) -> tuple[int, int]:
        """What was seen last: bytes in use, and the capacity."""
        now = time.monotonic()
        if self._looked is None or now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            capacity = ray.cluster_resources().get("object_store_memory", 0.0)  # type: ignore[no-untyped-call]
            free = ray.available_resources().get("object_store_memory", 0.0)  # type: ignore[no-untyped-call]
            self._seen = (max(0, int(capacity - free)), int(capacity))
        return self._seen
