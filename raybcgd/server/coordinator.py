"""[Ray] The coordinator actor, and the driver's side of it: joining a cluster, putting the data into its store, and
starting the coordinator again when it dies."""

import contextlib
import hashlib
import logging
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raybcgd.errors import ConfigError, RunError
from raybcgd.experiment import Experiment, RunFolder
from raybcgd.problem import Data, Problem
from raybcgd.record.metrics import withdraw
from raybcgd.record.rounds import RoundRecord
from raybcgd.server.pool import RayPool

_CONNECT_SECONDS = 5.0
_latest: tuple[tuple[str, ...], Any] | None = None
"""The data that were put last and their reference. One is enough: runs on the same data follow one another."""


@ray.remote(num_cpus=0, max_restarts=0)
class Coordinator:
    """Samples clients and blocks, reduces uploads, keeps the server's state, the log and the checkpoints."""

    def __init__(self, problem: Problem, data: list[Any], folder: str, resume: bool) -> None:
        torch.set_num_threads(1)
        self._problem, self._folder, self._resume = problem, RunFolder(Path(folder)), resume
        (self._data_ref,) = data

    def start(self) -> int:
        """Take up the run; how many rounds are already done."""
        # Not in the constructor: what is raised there reaches the driver as a death, which it would try to mend.
        self._data: Data = ray.get(self._data_ref)
        self._experiment = Experiment(self._problem, self._data, self._folder, self._resume)
        return self._experiment.done

    def run(self) -> Iterator[RoundRecord]:
        """Do the rounds that are left, yielding a record for each."""
        samples = [partition.sizes for partition in self._data.partitions]
        pool = RayPool(self._problem, self._data_ref, samples, self._experiment.state_address)
        try:
            yield from self._experiment.run(pool)
        finally:
            pool.close()

    def final(self) -> list[np.ndarray]:
        """The models to keep."""
        return [model.numpy() for model in self._problem.config.algorithm.models(self._experiment.server)]


@contextlib.contextmanager
def cluster(address: str | None, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Join the Ray cluster at an address, or start one on this machine and end it afterwards."""
    if ray.is_initialized():
        yield
        return
    # Without an address Ray would join whatever else runs on this machine.
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    say("starting Ray" if address == "local" else "joining the Ray cluster")
    if address not in ("auto", "local"):
        _check_reachable(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns until somebody chooses
    os.environ.setdefault("RAY_preload_python_modules", "torch")  # workers import it before they are needed
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        with _interrupt_later():
            _join(address)
        yield
    finally:
        with _interrupt_later():
            ray.shutdown()


def _join(address: str) -> None:
    try:
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except ConnectionError as error:
        raise ConfigError(
            f"hosts.address = {address!r}: no Ray cluster answers there ({error}); start one, or unset it"
        ) from None


@contextlib.contextmanager
def _interrupt_later() -> Iterator[None]:
    """Hold Ctrl-C back until the end of the block: while Ray starts or ends it would leave processes behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _check_reachable(address: str) -> None:
    # Ray itself retries a dead address for minutes.
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"hosts.address = {address!r}: no Ray cluster answers there ({error}); start one, or unset hosts.address "
            "and RAY_ADDRESS for a local one"
        ) from None


def put_once(data: Data) -> Any:
    """A reference to the data, which is put into the object store unless the same is there already.

    The runs of a comparison, or of a notebook, then share one copy a node even if each has read its files anew.
    """
    global _latest
    context = ray.get_runtime_context()
    # Node and job: what was put before Ray was started again is gone.
    key = (context.get_node_id(), context.get_job_id(), _digest(data))
    if _latest is None or _latest[0] != key:
        _latest = None  # what nobody else uses makes room first
        _latest = (key, ray.put(data))
    return _latest[1]


def _digest(data: Data) -> str:
    """SHA-256 of everything in the data; arrays are read where they lie."""
    arrays: list[pickle.PickleBuffer] = []
    digest = hashlib.sha256(pickle.dumps(data, protocol=5, buffer_callback=arrays.append))
    for array in arrays:
        digest.update(array.raw())
    return digest.hexdigest()


class RayRun:
    """The driver's view of a run on Ray: records as they come, across deaths of the coordinator."""

    def __init__(self, problem: Problem, data: Data, folder: RunFolder, resume: bool) -> None:
        self._problem, self._folder, self._resume = problem, folder, resume
        self._data_ref = put_once(data)
        self._coordinator: Any = None

    def records(self) -> Iterator[RoundRecord]:
        """Every round's record. A round that was done again after a death comes again."""
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
                raise _ours(error) from None
            except RayActorError as error:
                deaths += 1
                if deaths > self._problem.config.hosts.max_retries:
                    raise RunError(
                        f"the coordinator died {deaths} times without finishing another round: {_last_line(error)}"
                    ) from None
                self._resume = True

    def _start(self) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = Coordinator.options(scheduling_strategy=here)  # type: ignore[attr-defined]
        self._coordinator = options.remote(
            self._problem, [self._data_ref], str(self._folder.path.absolute()), self._resume
        )
        ray.get(self._coordinator.start.remote())

    def final(self) -> list[np.ndarray]:
        """The models to keep."""
        models: list[np.ndarray] = ray.get(self._coordinator.final.remote())
        return models

    def close(self) -> None:
        """End the coordinator, and with it all hosts."""
        if self._coordinator is not None:
            ray.kill(self._coordinator)
            self._coordinator = None
            # A coordinator that is killed, as by Ctrl-C, cannot take its own announcement back.
            withdraw(self._problem.config.metrics, self._folder.path)


def _ours(error: RayTaskError) -> Exception:
    cause = getattr(error, "cause", error)
    if isinstance(cause, (RunError, ConfigError)):
        return type(cause)(str(cause))
    return error


def _last_line(error: Exception) -> str:
    return str(error).strip().split("\n")[-1].strip()
