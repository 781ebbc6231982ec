"""[Ray] What a run is waiting for: published by a thread of the coordinator, read by the driver during a long wait."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ray.exceptions import RayError
from ray.experimental import internal_kv

_SECONDS = 1.0
"""Time between two checks of the hosts."""


class HostStatus(NamedTuple):
    """How many hosts of a run are up."""

    up: int
    text: str
    """For example "3 of 10 hosts up". Empty if all are up."""


@contextlib.contextmanager
def publishing(key: str, status: Callable[[], HostStatus]) -> Iterator[None]:
    """Publish the status of the hosts under a key in Ray's control store whenever it changes."""
    ended = threading.Event()

    def publish() -> None:
        last = None
        while not ended.wait(_SECONDS):
            with contextlib.suppress(RayError, ConnectionError):  # a run does not depend on this
                if (now := status()) != last:
                    internal_kv._internal_kv_put(key, json.dumps(now))
                    last = now

    thread = threading.Thread(target=publish, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(RayError, ConnectionError):
            internal_kv._internal_kv_del(key)


def read(key: str) -> HostStatus | None:
    """Return the published status. None if there is none, or if the control store does not answer."""
    store: Any = internal_kv.internal_kv_get_gcs_client()  # type: ignore[no-untyped-call]
    if store is None:  # the driver is a Ray client
        return None
    try:
        found = store.internal_kv_get(key.encode(), None, timeout=_SECONDS)
    except (RayError, ConnectionError):
        return None
    return None if found is None else HostStatus(*json.loads(found))
