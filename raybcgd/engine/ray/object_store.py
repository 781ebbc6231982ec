"""[Ray] The object store: one copy of the data per node, and the memory in use."""

import hashlib
import pickle
from typing import Any

import ray

from raybcgd.problem import Data

_latest: tuple[tuple[str, ...], Any] | None = None
"""Key and reference of the most recent data. Later runs of a comparison or a notebook reuse it."""


def put_once(data: Data) -> Any:
    """Put the data into the object store, unless the same data is already there, and return its reference."""
    global _latest
    context = ray.get_runtime_context()
    # The key includes node and job, because a restart of Ray loses all objects.
    key = (context.get_node_id(), context.get_job_id(), _digest(data))
    if _latest is None or _latest[0] != key:
        _latest = None  # free the old data first
        _latest = (key, ray.put(data))
    return _latest[1]


def _digest(data: Data) -> str:
    """Return the SHA-256 of the data, without copying its arrays."""
    arrays: list[pickle.PickleBuffer] = []
    digest = hashlib.sha256(pickle.dumps(data, protocol=5, buffer_callback=arrays.append))
    for array in arrays:
        digest.update(array.raw())
    return digest.hexdigest()


def store_usage() -> tuple[int, int]:
    """Return the bytes in use and the capacity, summed over all nodes. This takes milliseconds."""
    capacity = ray.cluster_resources().get("object_store_memory", 0.0)  # type: ignore[no-untyped-call]
    free = ray.available_resources().get("object_store_memory", 0.0)  # type: ignore[no-untyped-call]
    return max(0, int(capacity - free)), int(capacity)
