"""[Ray] The pool, which runs tasks and evaluations on the client hosts and repeats work that is lost with a host."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import ray

from raybcgd.engine.ray.hosts import LOST, HostGroup
from raybcgd.engine.ray.object_store import store_usage
from raybcgd.engine.ray.scheduling import TaskQueues, TaskTimes
from raybcgd.errors import RunError, last_line
from raybcgd.messages import ClientTask, Outcome, Piece, RoundOrders, Score
from raybcgd.problem import Problem
from raybcgd.record.rounds import Hosts
from raybcgd.server.pool import PoolReport, RoundWork

_CALLS_IN_FLIGHT = 2
"""Calls in flight per host. With two, a host never waits for the coordinator."""
_USAGE_SECONDS = 5.0
"""Minimum time between measurements of the object store. More frequent ones would slow down short rounds."""


class _Training(NamedTuple):
    """The state of one round of training."""

    orders: RoundOrders
    broadcast_ref: Any
    deadline: float | None
    """Time on the monotonic clock. None: wait for all tasks."""
    queues: TaskQueues
    open_clients: set[int]
    times_lost: Counter[int]
    """How often each client's task was lost with its host."""


class RayPool:
    """Client hosts on a Ray cluster."""

    def __init__(self, problem: Problem, data_ref: Any, samples: Sequence[np.ndarray], state_address: str) -> None:
        self._problem, self._config = problem, problem.config.hosts
        self._samples, self._data_phase = samples, 0
        self._homes: dict[int, int] = {}
        self._times = TaskTimes()
        self._counts: Counter[str] = Counter()
        self._max_queued, self._broadcast_seconds = 0, 0.0
        self._usage, self._usage_measured = (0, 0), float("-inf")
        self.hosts = HostGroup(problem, data_ref, state_address)

    def train(self, work: RoundWork) -> Iterator[Outcome]:
        """Run all tasks on the hosts and yield outcomes as they arrive."""
        training = self._begin(work)
        while training.open_clients:
            self._submit_calls(training)
            self._max_queued = max(self._max_queued, training.queues.num_waiting)
            calls = {ref: number for number in self.hosts.up() for ref in self.hosts.all[number].calls}
            starting = self.hosts.starting()
            done = self._wait([*calls, *starting], bool(calls), training.deadline)
            if not done:
                return
            for ref in done:
                if ref in starting and self.hosts.finish_start(starting[ref]):
                    training.queues.add_host(starting[ref])
                elif ref in starting:
                    self._enqueue(training.queues, training.queues.remove_host(starting[ref]))
                elif calls[ref] in self.hosts.all:
                    yield from self._collect(training, ref, calls[ref])

    def _begin(self, work: RoundWork) -> _Training:
        """Scale the hosts, put the broadcast into the object store, and queue the tasks."""
        self._data_phase = work.orders.data_phase
        self.hosts.cancel_calls()
        self.hosts.scale([self._steps(task.client) for task in work.tasks])
        self.hosts.wait_for_any()
        # The deadline starts here, so that waiting for a node does not make clients late.
        deadline = None if work.deadline_seconds is None else time.monotonic() + work.deadline_seconds
        began = time.perf_counter()
        broadcast_ref = ray.put(dict(work.broadcast))
        self._broadcast_seconds = time.perf_counter() - began
        self._max_queued = 0
        queues = TaskQueues(self.hosts.fixed_homes, self._problem.stack)
        self._enqueue(queues, work.tasks)
        open_clients = {task.client for task in work.tasks}
        return _Training(work.orders, broadcast_ref, deadline, queues, open_clients, times_lost=Counter())

    def _enqueue(self, queues: TaskQueues, tasks: Sequence[ClientTask]) -> None:
        """Queue tasks on the hosts that are up, or on the clients' fixed homes."""
        for number in self.hosts.all if self.hosts.fixed_homes else self.hosts.up():
            queues.add_host(number)
        if (per_host := self._config.clients_per_host) is not None:
            self._homes.update((task.client, self.hosts.in_slot[task.client // per_host]) for task in tasks)
        seconds = [self._times.predict(task.client, self._steps(task.client)) for task in tasks]
        self._counts["rehomed_clients"] += queues.assign(tasks, seconds, self._homes)

    def _submit_calls(self, training: _Training) -> None:
        """Submit calls to hosts that can take more: first one to every host, then a second one."""
        for _ in range(_CALLS_IN_FLIGHT):
            for number in self.hosts.up():
                host = self.hosts.all[number]
                full = len(host.calls) >= _CALLS_IN_FLIGHT
                chunk = [] if full else training.queues.take_chunk(number, self._times.in_seconds)
                for task in chunk:
                    self._counts["rehomed_clients"] += self._homes.get(task.client) != number
                    self._homes[task.client] = number
                if chunk:
                    host.calls[host.actor.train.remote(chunk, training.broadcast_ref, training.orders)] = chunk

    def _wait(self, refs: list[Any], busy: bool, deadline: float | None) -> list[Any]:
        """Wait for a call to finish or a host to start. Return an empty list at the deadline."""
        limits = [] if busy else [self._config.start_timeout]  # without calls, only a new host can make progress
        limits += [] if deadline is None else [max(0.0, deadline - time.monotonic())]
        done: list[Any] = ray.wait(refs, timeout=min(limits, default=None))[0]
        # Ray rounds timeouts to milliseconds, so the wait may end just before the deadline.
        late = deadline is not None and deadline - time.monotonic() <= 0.01
        if not done and not busy and not late:
            raise self.hosts.start_timeout_error()
        return done

    def _collect(self, training: _Training, ref: Any, number: int) -> list[Outcome]:
        """Return the outcomes of a finished call: none if its host was lost."""
        try:
            outcomes: list[Outcome] = ray.get(ref)
        except LOST as error:
            self._retry_lost(training, number, error)
            return []
        host = self.hosts.all[number]
        del host.calls[ref]
        host.load = outcomes[-1].load
        for outcome in outcomes:
            training.open_clients.discard(outcome.client)
            if outcome.error is None:
                self._times.add(outcome.client, self._steps(outcome.client), outcome.seconds)
        return outcomes

    def _retry_lost(self, training: _Training, number: int, error: Exception) -> None:
        """Replace a lost host and queue its tasks again."""
        lost, times_lost = self.hosts.replace(number), training.times_lost
        self._counts["retried_tasks"] += len(lost)
        times_lost.update(task.client for task in lost)
        worst = max((task.client for task in lost), key=lambda client: times_lost[client], default=None)
        if worst is not None and times_lost[worst] > self._config.max_retries:
            raise RunError(
                f"the task of client {worst} in round {training.orders.round_index} was lost with its host more than "
                f"hosts.max_retries = {self._config.max_retries} times: {last_line(error)}"
            )
        waiting = training.queues.remove_host(number)
        self.hosts.wait_for_any()
        self._enqueue(training.queues, [*lost, *waiting])

    def _steps(self, client: int) -> int:
        return self._problem.config.local.num_steps(int(self._samples[self._data_phase][client]))

    def evaluate(self, models: Sequence[np.ndarray], pieces: Sequence[Piece]) -> Callable[[], list[Score]]:
        """Start evaluating models, before the next round's tasks. The returned function waits for the scores."""
        self.hosts.wait_for_any()
        models_ref = ray.put(list(models))
        actors = [self.hosts.all[number].actor for number in self.hosts.up()]
        size = -(-len(pieces) // len(actors))
        shares = [pieces[k * size : (k + 1) * size] for k in range(len(actors))]
        calls = [(s, a.evaluate.remote(s, models_ref)) for s, a in zip(shares, actors, strict=True) if s]
        return lambda: [score for share, ref in calls for score in self._scores(share, ref, models_ref)]

    def _scores(self, pieces: Sequence[Piece], ref: Any, models_ref: Any) -> list[Score]:
        """Wait for the scores of a call, and repeat it on another host if its host is lost."""
        for attempt in range(self._config.max_retries + 1):
            try:
                scores: list[Score] = ray.get(ref)
                return scores
            except LOST as error:
                last = error
            self.hosts.replace_dead()
            self.hosts.wait_for_any()
            up = self.hosts.up()
            ref = self.hosts.all[up[attempt % len(up)]].actor.evaluate.remote(pieces, models_ref)
        limit = f"hosts.max_retries = {self._config.max_retries}"
        raise RunError(f"an evaluation was lost with its host more than {limit} times: {last_line(last)}")

    def report(self) -> PoolReport:
        counts, self._counts = self._counts, Counter()
        restarted, self.hosts.restarted = self.hosts.restarted, 0
        loads = [host.load for host in self.hosts.all.values()]
        on_devices = [load.device_memory_bytes for load in loads if load.device_memory_bytes is not None]
        if time.monotonic() - self._usage_measured >= _USAGE_SECONDS:
            self._usage, self._usage_measured = store_usage(), time.monotonic()
        hosts = Hosts(
            up=len(self.hosts.up()),
            pending=len(self.hosts.starting()),
            queued_tasks=self._max_queued,
            **counts,
            restarted=restarted,
            state_memory_bytes=sum(load.state_memory_bytes for load in loads),
            device_memory_bytes=sum(on_devices) if on_devices else None,
            object_store_bytes=self._usage[0],
            object_store_capacity_bytes=self._usage[1],
        )
        return PoolReport(hosts, self._broadcast_seconds)

    def close(self) -> None:
        self.hosts.stop()
