"""[Ray] The coordinator actor, and the driver's session, which restarts it if it dies."""

import logging
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RaySystemError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raybcgd.config import resume_command, run_tables
from raybcgd.engine.demand import demand
from raybcgd.engine.ray.cluster import cluster
from raybcgd.engine.ray.host_actor import freeze_heap
from raybcgd.engine.ray.hosts import LOST, HostGroup, retry_delay, unwrapped
from raybcgd.engine.ray.object_store import put_once
from raybcgd.engine.ray.own import RayDied, dead, get, restart, wait
from raybcgd.engine.ray.pool import RayPool
from raybcgd.engine.ray.status import publishing, read
from raybcgd.engine.session import Announcer, Session, ignore, resuming, training
from raybcgd.errors import RunError, last_line
from raybcgd.problem import Data, Problem
from raybcgd.record.metrics import withdraw
from raybcgd.record.rounds import Quality, RoundRecord
from raybcgd.server.loop import TrainingLoop
from raybcgd.storage import RunFolder, slug

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 1.0
"""If no round ends for this long, the driver asks what the run is waiting for."""
_YIELD_SECONDS = 0.1
"""Minimum time between messages to the driver. A message costs the coordinator as much time as a small round."""
_GRACE_SECONDS = 10.0
"""Time that the coordinator has after a signal to abandon its round and save a checkpoint."""
_LOST = (RayDied, RaySystemError, *LOST)
"""The exceptions after which the driver starts a new coordinator."""


class RayEngine:
    """Runs the coordinator and the client hosts as actors."""

    def running(self, address: str | None, announce: Announcer) -> AbstractContextManager[None]:
        return cluster(address, announce)

    def open(self, problem: Problem, data: Data, folder: RunFolder, resume: bool) -> Session:
        return RaySession(problem, data, folder, resume)


class RaySession:
    """The driver's side of a run."""

    def __init__(self, problem: Problem, data: Data, folder: RunFolder, resume: bool) -> None:
        self._problem, self._data, self._folder, self._resume = problem, data, folder, resume
        self._coordinator: Any = None
        self._models: list[np.ndarray] = []
        self._results: Any = None
        """The coordinator's generator of records. None before the first record and after the last."""

    def records(self, announce: Announcer = ignore) -> Iterator[RoundRecord]:
        """Run the remaining rounds and yield their records. If the coordinator or our own Ray dies, resume."""
        last_round, deaths = -1, 0
        while True:
            try:
                announce("starting the coordinator")
                done = self._start_coordinator()
                if done:
                    announce(resuming(done))
                announce("starting the hosts")
                for records in self._batches(done, announce):
                    if records[-1].round > last_round:
                        last_round, deaths = records[-1].round, 0
                    yield from records
                self._models = get(self._coordinator.models.remote())
                return
            except (RayTaskError, *_LOST) as error:
                if isinstance(error, RayTaskError) and not dead():  # a dead Ray causes such errors too
                    raise unwrapped(error) from None
                deaths += 1
                self._recover(error, deaths, announce)

    def _recover(self, error: Exception, deaths: int, announce: Announcer) -> None:
        """Prepare to resume after the death of the coordinator or of our own Ray."""
        self._results = None
        died = dead()
        what, cause = ("Ray", died) if died else ("the coordinator", last_line(error))
        if deaths > self._problem.config.hosts.max_retries:
            raise RunError(
                f"{what} died {deaths} times without finishing a round ({cause}); continue with "
                f"`{resume_command(run_tables(self._folder), self._folder)}`"
            ) from None
        log.warning("%s died or did not start (%s); starting it again", what, cause)
        coordinator, self._coordinator = self._coordinator, None
        if died:
            announce("starting Ray again")
            restart()
        else:
            if coordinator is not None:
                ray.kill(coordinator)  # it may be alive, but unreachable
            time.sleep(retry_delay(deaths))
        self._resume = True

    def _start_coordinator(self) -> int:
        """Start the coordinator on this node. Return how many rounds are done."""
        this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._name = f"raybcgd-{slug(self._folder.run_name)}-{secrets.token_hex(2)}"
        options = Coordinator.options(name=f"{self._name}-coordinator", scheduling_strategy=this_node)  # type: ignore[attr-defined]
        folder = str(self._folder.path.absolute())
        # Inside a list, Ray passes the reference itself instead of the data.
        data_refs = [put_once(self._data)]
        self._coordinator = options.remote(self._problem, data_refs, folder, self._resume, self._name)
        done: int = get(self._coordinator.start.remote())
        return done

    def _batches(self, done: int, announce: Announcer) -> Iterator[list[RoundRecord]]:
        """Run the rounds after the first `done` and yield their records. Announce what a long wait is for."""
        results = self._coordinator.run.remote()
        announced = None
        while True:
            if not wait(results, _PATIENCE_SECONDS):
                started, status = self._results is not None, read(self._name)
                if status is not None and status != announced and not (started and status.up):
                    waiting = "waiting for hosts" if started else "starting the hosts"
                    announce(training(done) if status.up else waiting, status.text)
                    announced = status
                continue
            ref = next(results, None)
            if ref is None:
                self._results = None
                return
            self._results, announced = results, None
            yield [_unpacked(*packed) for packed in ray.get(ref)]

    def models(self) -> list[np.ndarray]:
        return self._models

    def close(self) -> None:
        """Stop the coordinator, and with it all hosts. After a signal, first let it save a checkpoint if one is due."""
        if self._coordinator is not None:
            if self._results is not None and isinstance(sys.exception(), KeyboardInterrupt):
                ray.cancel(self._results, recursive=False)  # does not cancel the calls to the hosts
                ray.wait([self._coordinator.__ray_ready__.remote()], timeout=_GRACE_SECONDS)  # returns after `run`
            ray.kill(self._coordinator)
            self._coordinator = None
            # A killed coordinator, for example after Ctrl-C, leaves its discovery file behind.
            withdraw(self._problem.config.metrics, self._folder)


def in_batches(records: Iterable[RoundRecord], seconds: float) -> Iterator[list[RoundRecord]]:
    """Yield records in lists, at most one list every `seconds`. Before an error is raised, yield the rest."""
    ready: list[RoundRecord] = []
    sent = float("-inf")
    try:
        for record in records:
            ready.append(record)
            if time.monotonic() - sent >= seconds:
                yield ready
                ready, sent = [], time.monotonic()
    except Exception:
        if ready:
            yield ready
        raise
    if ready:
        yield ready


def _packed(record: RoundRecord) -> tuple[str, Quality]:
    """Return a record as JSON, which takes an eighth of the time of pickling, and what JSON cannot hold: NaN losses."""
    return record.model_dump_json(), record.quality


def _unpacked(text: str, quality: Quality) -> RoundRecord:
    return RoundRecord.model_validate_json(text).model_copy(update={"quality": quality})


@ray.remote(num_cpus=0, max_restarts=0)
class Coordinator:
    """Runs the training loop: server state, aggregation, log and checkpoints."""

    def __init__(self, problem: Problem, data_refs: list[Any], folder: str, resume: bool, name: str) -> None:
        torch.set_num_threads(1)
        self._problem, self._folder, self._resume, self._name = problem, RunFolder(Path(folder)), resume, name
        (self._data_ref,) = data_refs

    def __repr__(self) -> str:
        return f"coordinator of {self._folder.run_name}"

    def start(self) -> int:
        """Start or resume the run. Return how many rounds are done."""
        # Not in the constructor: there, the driver would treat an exception as the actor's death and retry.
        self._data: Data = ray.get(self._data_ref)
        self._loop = TrainingLoop(self._problem, self._data, self._folder, self._resume)
        freeze_heap()
        return self._loop.rounds_done

    def run(self) -> Iterator[list[tuple[str, Quality]]]:
        """Run the remaining rounds and yield their packed records."""
        samples = [partition.sizes for partition in self._data.partitions]
        address, work = self._loop.state_address, demand(self._problem, self._data)
        hosts = HostGroup(self._problem, self._data_ref, address, demand=work, name=self._name)
        canceled = ray.get_runtime_context().is_canceled
        pool = RayPool(self._problem, self._data_ref, samples, address, hosts, canceled)
        try:
            with publishing(self._name, hosts.status):
                for records in in_batches(self._loop.run(pool), _YIELD_SECONDS):
                    yield [_packed(record) for record in records]
        finally:
            pool.close()

    def models(self) -> list[np.ndarray]:
        return self._loop.models()
