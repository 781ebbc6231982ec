"""[Ray] The pool, which runs tasks and evaluations on the client hosts and retries work that is lost with a host."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import GetTimeoutError, RayTaskError
from torch import Tensor

from raybcgd.engine.ray.collection import collect_node
from raybcgd.engine.ray.evaluation import evaluate
from raybcgd.engine.ray.events import Events
from raybcgd.engine.ray.host_actor import opened, reply_parts, share, submit
from raybcgd.engine.ray.hosts import IDLE_SECONDS, LOST, Host, HostGroup, unwrapped
from raybcgd.engine.ray.object_store import store_usage
from raybcgd.engine.ray.placement import PIECEWISE_BYTES, sums_at_hosts
from raybcgd.engine.ray.scheduling import TaskQueues, TaskTimes
from raybcgd.engine.ray.suspects import Suspects
from raybcgd.errors import RunError, last_line
from raybcgd.messages import FRESH, ClientTask, HostLost, Outcome, Piece, RoundOrders, Score
from raybcgd.problem import Problem
from raybcgd.record.rounds import Hosts
from raybcgd.server.pool import Inbox, PoolReport, RoundWork

_CALLS_IN_FLIGHT = 2
"""Calls in flight per host. With two, a host never waits for the coordinator."""
_USAGE_SECONDS = 15.0
"""Minimum time between measurements of the object store. More frequent ones would slow down short rounds."""
_GRACE_SECONDS = 1.0
"""A host that is still busy at the deadline is replaced after another `deadline_seconds` plus this time."""


@dataclass
class _Training:
    """The state of one round of training."""

    inbox: Inbox
    orders: RoundOrders
    shared: Any
    """The broadcast and the orders, which all calls share."""
    deadline: float | None
    """On the monotonic clock. None: wait for all tasks."""
    queues: TaskQueues
    each_call_hands_over: bool
    """Whether every call returns its partial sum. Otherwise only the last call of a host does."""
    piecewise: bool
    """Whether partial sums are collected in pieces after the last call."""
    suspects: Suspects
    open_clients: set[int]
    """Clients whose upload has not arrived."""
    reply_parts: int
    """Number of parts of a reply with a partial sum."""
    calls: int = 0
    """Calls in flight."""
    other_parts: dict[Any, list[Any]] = field(default_factory=dict)
    """References to the other parts of each reply, keyed by the reference to its first part."""
    alone: bool = False
    """Train clients one by one, because one of them breaks its host's device."""
    times_lost: Counter[int] = field(default_factory=Counter)
    """How many times each client's task was lost with its host."""
    watched: set[int] = field(default_factory=set)
    """Starting hosts that the pool is already waiting for."""


class RayPool:
    """Client hosts on a Ray cluster."""

    server_device = torch.device("cpu")

    def __init__(
        self,
        problem: Problem,
        data_ref: Any,
        samples: Sequence[np.ndarray],
        state_address: str,
        hosts: HostGroup | None = None,
        canceled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._problem, self._config = problem, problem.config.hosts
        num_steps = np.vectorize(problem.config.local.num_steps, otypes=[np.int64])
        self._num_steps, self._data_phase = [num_steps(sizes) for sizes in samples], 0
        self._homes: dict[int, int] = {}
        self._times = TaskTimes(stacked=bool(problem.stack))
        self._counts: Counter[str] = Counter()
        self._max_queued, self._broadcast_seconds, self._reported_lost = 0, 0.0, 0
        self._usage, self._usage_measured = (0, 0), float("-inf")
        self._events = Events(canceled)
        self.hosts = hosts or HostGroup(problem, data_ref, state_address)
        self.live = self.hosts.live

    def train(self, work: RoundWork, inbox: Inbox) -> None:
        """Run all tasks on the hosts and pass their results to the inbox as they arrive."""
        self._events.raise_if_canceled()
        training = self._begin(work, inbox)
        inbox.meanwhile()
        while training.open_clients:
            if training.piecewise and not (training.calls or training.queues.num_waiting or training.suspects.tasks):
                self._collect(training)
                continue
            event = self._next_event(training)
            if event is None:
                self.hosts.end_calls((work.deadline_seconds or 0.0) + _GRACE_SECONDS)
                return
            number, ref, future = event
            host = self.hosts.all.get(number)
            if host is None:
                continue
            if ref is host.ready:
                self._host_started(training, number)
            elif ref in host.calls:
                self._call_ended(training, number, ref, future)

    def _begin(self, work: RoundWork, inbox: Inbox) -> _Training:
        """Scale the hosts, prepare the broadcast, queue the tasks and submit the first calls."""
        self._data_phase = work.orders.data_phase
        self.hosts.cancel_calls()
        self.hosts.scale([self._steps(task.client) for task in work.tasks])
        self.hosts.wait_for_any()
        # The deadline starts here, so that waiting for a node does not make clients late.
        deadline = None if work.deadline_seconds is None else time.monotonic() + work.deadline_seconds
        problem, up = self._problem, self.hosts.up()
        nodes = [host.place.node for host in self.hosts.all.values() if host.place is not None]
        reduce, sums_bytes = sums_at_hosts(problem, work.tasks, nodes)
        orders = work.orders._replace(reduce=reduce)
        began = time.perf_counter()
        shared = share({name: np.asarray(vector) for name, vector in work.broadcast.items()}, orders)
        self._broadcast_seconds = time.perf_counter() - began
        by_block = problem.algorithm.blockwise and not problem.keeps_state and sums_bytes > PIECEWISE_BYTES
        training = _Training(
            inbox,
            orders,
            shared,
            deadline,
            TaskQueues(self.hosts.fixed_homes, problem.stack, by_block),
            each_call_hands_over=not reduce or deadline is not None,
            piecewise=reduce and deadline is None and sums_bytes > PIECEWISE_BYTES,
            suspects=Suspects(self._config.max_retries),
            open_clients={task.client for task in work.tasks},
            reply_parts=reply_parts(sums_bytes) if reduce else 1,
        )
        training.suspects.tasks += [task for task in work.tasks if task.client in self.hosts.hung]
        self._enqueue(training.queues, [task for task in work.tasks if task.client not in self.hosts.hung])
        self._max_queued = 0
        for _ in range(_CALLS_IN_FLIGHT):  # a first call to every host, then a second one
            for number in up:
                self._submit_call(training, number)
        self._max_queued = training.queues.num_waiting
        self._watch_starting(training)
        return training

    def _enqueue(self, queues: TaskQueues, tasks: Sequence[ClientTask]) -> None:
        """Queue tasks on the hosts that are up, or on the clients' fixed homes."""
        for number in self.hosts.all if self.hosts.fixed_homes else self.hosts.up():
            queues.add_host(number)
        if (per_host := self._config.clients_per_host) is not None:
            self._homes.update((task.client, self.hosts.in_slot[task.client // per_host]) for task in tasks)
        seconds = [self._times.predict(task.client, self._steps(task.client)) for task in tasks]
        self._counts["rehomed_clients"] += queues.assign(tasks, seconds, self._homes)

    def _submit_call(self, training: _Training, number: int) -> None:
        """Submit the next tasks to a host that can take another call."""
        host, queues = self.hosts.all[number], training.queues
        if host.place is None or len(host.calls) >= _CALLS_IN_FLIGHT or host.isolates:
            return
        chunk = queues.take_chunk(number, self._times.in_seconds)
        if not chunk:  # suspects come last, because they can block the host
            chunk = training.suspects.take(host, lambda task: self.hosts.may_run(task, number))
            host.isolates = bool(chunk)
        for task in chunk:
            self._counts["rehomed_clients"] += self._homes.get(task.client) != number
            self._homes[task.client] = number
        # With an empty queue, a host returns its sum: with this chunk, or in an empty call once no other is in flight.
        last = queues.is_empty(number) and not training.piecewise
        if chunk or (last and host.kept and not host.calls):
            hand_over = training.each_call_hands_over or last or (host.isolates and not training.piecewise)
            parts = training.reply_parts if hand_over else 1
            ref, others = submit(host.actor, training.shared, chunk, hand_over, training.alone, parts)
            host.calls[ref], training.other_parts[ref] = chunk, others
            training.calls += 1
            self._events.watch(number, ref)

    def _watch_starting(self, training: _Training) -> None:
        for ref, number in self.hosts.starting().items():
            if number not in training.watched:
                training.watched.add(number)
                self._events.watch(number, ref)

    def _next_event(self, training: _Training) -> tuple[int, Any, Any] | None:
        """Wait for a call to end or a host to start. Return None at the deadline."""
        # Without calls, only a new host can make progress.
        limits = [math.inf] if training.calls else [self._config.start_timeout]
        limits += [] if training.deadline is None else [max(0.0, training.deadline - time.monotonic())]
        event = self._events.next(min(limits))
        if event is None and (training.deadline is None or time.monotonic() < training.deadline):
            raise self.hosts.start_timeout_error()
        return event

    def _host_started(self, training: _Training, number: int) -> None:
        if self.hosts.finish_start(number):
            training.queues.add_host(number)
            for _ in range(_CALLS_IN_FLIGHT):
                self._submit_call(training, number)
        else:
            self._enqueue(training.queues, training.queues.remove_host(number))
            self._serve(training)

    def _call_ended(self, training: _Training, number: int, ref: Any, future: Any) -> None:
        """Take the results of a call, or retry its tasks if its host was lost. Then submit the next call."""
        try:
            result = opened(future.result(), *ray.get(training.other_parts.pop(ref)))
        except LOST as error:
            self._retry_lost(training, [number], error)
            return
        except RayTaskError as error:
            raise unwrapped(error) from None
        if result.lost is not None:
            self._host_failed(training, number, result.lost)
            return
        host = self.hosts.all[number]
        training.calls -= 1
        host.isolates = False
        tasks, host.load = host.calls.pop(ref), result.load
        failed = {outcome.client for outcome in result.outcomes if outcome.error is not None}
        host.kept += [task for task in tasks if task.client not in failed]
        for outcome in result.outcomes:
            if outcome.error is None:
                self.hosts.hung.discard(outcome.client)
                self._times.add(outcome.client, self._steps(outcome.client), outcome.seconds)
        training.inbox.receive(result.outcomes, result.partial)
        arrived = failed if result.partial is None else failed | set(result.partial.clients)
        arrived |= {outcome.client for outcome in result.outcomes if outcome.payload is not None}
        training.open_clients -= arrived
        host.kept = [task for task in host.kept if task.client not in arrived]
        self._submit_call(training, number)

    def _host_failed(self, training: _Training, number: int, lost: HostLost) -> None:
        """Replace a host whose device failed and retry its tasks, except that of the client at fault."""
        for client in lost.clients if len(lost.clients) == 1 else ():
            for tasks in self.hosts.all[number].calls.values():
                tasks[:] = [task for task in tasks if task.client != client]
            training.open_clients.discard(client)
            training.inbox.receive([Outcome(client, None, FRESH, 0.0, float("nan"), lost.cause)])
        training.alone |= bool(lost.clients)
        self._retry_lost(training, [number], RunError(lost.cause))

    def _collect(self, training: _Training) -> None:
        """Collect the partial sums of all hosts, node by node. Retry the tasks of a node's hosts if one is lost."""
        nodes: dict[str, list[int]] = {}
        for number, host in self.hosts.all.items():
            if host.place is not None and host.kept:
                nodes.setdefault(host.place.node, []).append(number)
        for node, numbers in nodes.items():
            hosts = [self.hosts.all[number] for number in numbers]
            try:
                for partial in collect_node(node, [host.actor for host in hosts], combine=len(nodes) > 1):
                    training.inbox.receive([], partial)
                    training.open_clients -= set(partial.clients)
            except LOST as error:
                self._retry_lost(training, numbers, error)
                return
            except RayTaskError as error:
                raise unwrapped(error) from None
            for host in hosts:
                host.kept.clear()

    def _retry_lost(self, training: _Training, numbers: Sequence[int], error: Exception) -> None:
        """Queue the tasks of these hosts again. Replace the hosts that are lost; the others discard their sums."""
        tasks: list[ClientTask] = []
        for number in numbers:
            host = self.hosts.all[number]
            if len(numbers) > 1 and self._discards_sums(host):
                tasks += host.kept
                host.kept.clear()
            else:
                training.calls -= len(host.calls)
                self.hosts.replace(number)
                tasks += [*host.kept, *training.queues.remove_host(number)]
                self._count_lost(training, host, error)
        self.hosts.wait_for_any()
        self._enqueue(training.queues, tasks)
        self._watch_starting(training)
        self._serve(training)

    def _discards_sums(self, host: Host) -> bool:
        """Tell a host to discard its partial sum. Return False if the host is lost."""
        try:
            ray.get(host.actor.discard_sums.remote(), timeout=IDLE_SECONDS)
        except (*LOST, GetTimeoutError):
            return False
        return True

    def _serve(self, training: _Training) -> None:
        """Submit calls to all hosts that can take more."""
        for number in self.hosts.up():
            training.queues.add_host(number)
            for _ in range(_CALLS_IN_FLIGHT):
                self._submit_call(training, number)

    def _count_lost(self, training: _Training, host: Host, error: Exception) -> None:
        """Count lost tasks, and stop the run if one was lost too many times. A client that crashes its hosts fails."""
        self._counts["retried_tasks"] += len(host.unfinished)
        crashed = training.suspects.add(host, error)
        if crashed is not None:
            training.inbox.receive([crashed])
            training.open_clients.discard(crashed.client)
        lost = {task.client for task in host.in_calls or host.kept} & training.open_clients
        (times_lost := training.times_lost).update(lost)
        worst = max(lost, key=lambda client: (times_lost[client], client), default=None)
        if worst is not None and times_lost[worst] > self._config.max_retries:
            raise RunError(
                f"the task of client {worst} in round {training.orders.round_index + 1} was lost with its host "
                f"more than hosts.max_retries = {self._config.max_retries} times: {last_line(error)}"
            )

    def _steps(self, client: int) -> int:
        return int(self._num_steps[self._data_phase][client])

    def evaluate(self, models: Sequence[Tensor], pieces: Sequence[Piece]) -> Callable[[], list[Score]]:
        """Start evaluating models, ahead of the next round's tasks. The returned function waits for the scores."""
        return evaluate(self.hosts, models, pieces, self._config.max_retries)

    def report(self) -> PoolReport:
        counts, self._counts = self._counts, Counter()
        restarted, self._reported_lost = self.hosts.lost - self._reported_lost, self.hosts.lost
        if time.monotonic() - self._usage_measured >= _USAGE_SECONDS:
            self._usage, self._usage_measured = store_usage(), time.monotonic()
        hosts = Hosts(
            up=len(self.hosts.up()),
            pending=len(self.hosts.starting()),
            queued_tasks=self._max_queued,
            **counts,
            restarted=restarted,
            **self.hosts.load(),
            object_store_bytes=self._usage[0],
            object_store_capacity_bytes=self._usage[1],
        )
        return PoolReport(hosts, self._broadcast_seconds)

    def close(self) -> None:
        self.hosts.stop()
