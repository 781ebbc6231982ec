"""The local engine: one client host in this process."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

import numpy as np
import torch
from torch import Tensor

from raybcgd.client.device import CPU, accelerator, deterministic
from raybcgd.client.host import ClientHost, one_thread
from raybcgd.engine.session import Announcer, Session, ignore, resuming, training
from raybcgd.errors import RunError, named_line
from raybcgd.messages import HostLoad, HostLost, Piece, Score
from raybcgd.problem import Data, Problem
from raybcgd.record.rounds import Hosts, LiveHosts, RoundRecord
from raybcgd.server.loop import TrainingLoop
from raybcgd.server.pool import Inbox, PoolReport, RoundWork
from raybcgd.storage import RunFolder


class LocalEngine:
    """Runs everything in this process."""

    def running(self, address: str | None, announce: Announcer) -> AbstractContextManager[None]:
        return nullcontext()  # nothing to start

    def open(self, problem: Problem, data: Data, folder: RunFolder, resume: bool) -> Session:
        return LocalSession(problem, data, folder, resume)


class LocalSession:
    """A run in this process."""

    def __init__(self, problem: Problem, data: Data, folder: RunFolder, resume: bool) -> None:
        self._loop = TrainingLoop(problem, data, folder, resume)
        self._pool = LocalPool(problem, data, self._loop.state_address)

    def records(self, announce: Announcer = ignore) -> Iterator[RoundRecord]:
        if self._loop.rounds_done:
            announce(resuming(self._loop.rounds_done))
        announce(training(self._loop.rounds_done))
        return self._loop.run(self._pool)

    def models(self) -> list[np.ndarray]:
        return self._loop.models()

    def close(self) -> None:
        self._pool.close()


class LocalPool:
    """A pool of one host, on the CPU unless `hosts.device = "gpu"`."""

    def __init__(self, problem: Problem, data: Data, state_address: str) -> None:
        self._open = ExitStack()
        self._open.enter_context(one_thread())
        hosts = problem.config.hosts
        device = accelerator() if hosts.device == "gpu" else None
        self._open.enter_context(deterministic(device or CPU, hosts.determinism == "strict", hosts.allow_tf32))
        self._host = ClientHost(problem, data, state_address, device or CPU)
        # With a deadline, clients train one at a time, because the deadline is checked only between calls.
        self._chunk = 1 if problem.config.cohort.deadline_seconds is not None else problem.stack or 1
        self._reduce = hosts.aggregation != "coordinator"
        self.server_device = (device or CPU) if self._reduce else CPU
        self._load, self._queued = HostLoad(), 0

    def train(self, work: RoundWork, inbox: Inbox) -> None:
        """Run the tasks, one stack after another, until the deadline."""
        limit = None if work.deadline_seconds is None else time.monotonic() + work.deadline_seconds
        orders = work.orders._replace(reduce=self._reduce)
        self._queued = max(0, len(work.tasks) - self._chunk)
        for start in range(0, len(work.tasks), self._chunk):
            result = self._host.train(work.tasks[start : start + self._chunk], work.broadcast, orders)
            if result.lost is not None:
                raise _device_lost(result.lost, orders.round_index)
            self._load = result.load
            if limit is not None and time.monotonic() > limit:
                return  # this client is late, and those after it do not start
            # With a deadline, each client's upload is handed over, because the sum must not contain a late one.
            inbox.receive(result.outcomes, None if limit is None else self._host.hand_over(on_device=True))
        if limit is None:
            inbox.receive([], self._host.hand_over(on_device=True))

    def evaluate(self, models: Sequence[Tensor], pieces: Sequence[Piece]) -> Callable[[], list[Score]]:
        """Evaluate models immediately."""
        try:
            scores = self._host.evaluate(pieces, models)
        except torch.AcceleratorError as error:
            raise RunError(
                f"the accelerator failed during an evaluation: {named_line(error)}; fix the test data or the model, "
                "then resume"
            ) from None
        return lambda: scores

    def report(self) -> PoolReport:
        return PoolReport(Hosts(up=1, queued_tasks=self._queued, **self._load._asdict()))

    def live(self) -> LiveHosts:
        return LiveHosts(up=1, pending=0, restarted=0)

    def close(self) -> None:
        """Restore torch's settings."""
        self._open.close()


def _device_lost(lost: HostLost, round_index: int) -> RunError:
    if not lost.clients:
        return RunError(f"the accelerator failed before round {round_index + 1}: {lost.cause}; resume the run")
    who = ", ".join(map(str, lost.clients))
    who = f"client {who}" if len(lost.clients) == 1 else f"one of the clients {who}"
    return RunError(
        f"{who} made the accelerator fail in round {round_index + 1}: {lost.cause}; fix its data or the model, "
        "then resume"
    )
