"""[Ray] The coordinator actor, and the driver's side of it, which restarts the coordinator when it dies."""

import hashlib
import pickle
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raybcgd.engine.ray.cluster import cluster
from raybcgd.engine.ray.pool import RayPool
from raybcgd.engine.session import Announcer, Session
from raybcgd.errors import ConfigError, RunError, last_line
from raybcgd.problem import Data, Problem
from raybcgd.record.metrics import withdraw
from raybcgd.record.rounds import RoundRecord
from raybcgd.server.loop import TrainingLoop
from raybcgd.storage import RunFolder

_latest: tuple[tuple[str, ...], Any] | None = None
"""The data that was put last, and its reference. One is enough: runs on the same data follow one another."""


@ray.remote(num_cpus=0, max_restarts=0)
class Coordinator:
    """Samples clients and blocks, aggregates uploads, and keeps the server state, the log and the checkpoints."""

    def __init__(self, problem: Problem, data: list[Any], folder: str, resume: bool) -> None:
        torch.set_num_threads(1)
        self._problem, self._folder, self._resume = problem, RunFolder(Path(folder)), resume
        (self._data_ref,) = data

    def start(self) -> None:
        """Start or resume the run."""
        # Not in the constructor: an exception there reaches the driver as a death, which it would retry.
        self._data: Data = ray.get(self._data_ref)
        self._loop = TrainingLoop(self._problem, self._data, self._folder, self._resume)

    def run(self) -> Iterator[RoundRecord]:
        """Run the remaining rounds and yield their records."""
        samples = [partition.sizes for partition in self._data.partitions]
        pool = RayPool(self._problem, self._data_ref, samples, self._loop.state_address)
        try:
            yield from self._loop.run(pool)
        finally:
            pool.close()

    def models(self) -> list[np.ndarray]:
        """Return the final models."""
        return self._loop.models()


class RayEngine:
    """Runs client hosts and the coordinator as actors."""

    def running(self, address: str | None, announce: Announcer) -> AbstractContextManager[None]:
        """Join a cluster or start one."""
        return cluster(address, announce)

    def open(self, problem: Problem, data: Data, folder: RunFolder, resume: bool) -> Session:
        """Start or resume a run."""
        return RaySession(problem, data, folder, resume)


class RaySession:
    """The driver's view of a run on Ray: its records, across deaths of the coordinator."""

    def __init__(self, problem: Problem, data: Data, folder: RunFolder, resume: bool) -> None:
        self._problem, self._folder, self._resume = problem, folder, resume
        self._data_ref = put_once(data)
        self._coordinator: Any = None

    def records(self) -> Iterator[RoundRecord]:
        """Run the remaining rounds and yield their records. A round repeated after a death is yielded again."""
        furthest, deaths = -1, 0
        while True:
            try:
                self._start()
                for ref in self._coordinator.run.remote():
                    record: RoundRecord = ray.get(ref)
                    if record.round > furthest:
                        furthest, deaths = record.round, 0
                    yield record
                return
            except RayTaskError as error:
                raise _cause(error) from None
            except RayActorError as error:
                deaths += 1
                if deaths > self._problem.config.hosts.max_retries:
                    raise RunError(
                        f"the coordinator died {deaths} times without finishing another round: {last_line(error)}"
                    ) from None
                self._resume = True

    def _start(self) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = Coordinator.options(scheduling_strategy=here)  # type: ignore[attr-defined]
        self._coordinator = options.remote(
            self._problem, [self._data_ref], str(self._folder.path.absolute()), self._resume
        )
        ray.get(self._coordinator.start.remote())

    def models(self) -> list[np.ndarray]:
        """Return the final models."""
        models: list[np.ndarray] = ray.get(self._coordinator.models.remote())
        return models

    def close(self) -> None:
        """Stop the coordinator, and with it all hosts."""
        if self._coordinator is not None:
            ray.kill(self._coordinator)
            self._coordinator = None
            # A killed coordinator, as after Ctrl-C, cannot remove its discovery file.
            withdraw(self._problem.config.metrics, self._folder)


def put_once(data: Data) -> Any:
    """Put the data into the object store, unless the same data is already there, and return its reference.

    The runs of a comparison or a notebook then share one copy per node, even if each has read the files itself.
    """
    global _latest
    context = ray.get_runtime_context()
    # Node and job: after a restart of Ray the objects are gone.
    key = (context.get_node_id(), context.get_job_id(), _digest(data))
    if _latest is None or _latest[0] != key:
        _latest = None  # free the old data first
        _latest = (key, ray.put(data))
    return _latest[1]


def _digest(data: Data) -> str:
    """Return the SHA-256 of the data. Arrays are read in place."""
    arrays: list[pickle.PickleBuffer] = []
    digest = hashlib.sha256(pickle.dumps(data, protocol=5, buffer_callback=arrays.append))
    for array in arrays:
        digest.update(array.raw())
    return digest.hexdigest()


def _cause(error: RayTaskError) -> Exception:
    """Return our own exception out of Ray's wrapper."""
    cause = getattr(error, "cause", error)
    if isinstance(cause, (RunError, ConfigError)):
        return type(cause)(str(cause))
    return error
