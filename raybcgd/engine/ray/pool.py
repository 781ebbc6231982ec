"""[Ray] The pool of client hosts: starts them, homes clients on them, hands out work, and does lost work again."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, ObjectLostError, RayActorError

from raybcgd.engine.ray.cluster import node_resources
from raybcgd.engine.ray.host_actor import HostActor, HostPlace
from raybcgd.engine.ray.placement import HostNeeds, host_count, host_needs, useful_hosts
from raybcgd.engine.ray.scheduling import Deal, Times
from raybcgd.errors import ConfigError, RunError, last_line
from raybcgd.messages import ClientTask, HostLoad, Outcome, Piece, RoundOrders, Score
from raybcgd.problem import Problem
from raybcgd.record.rounds import Hosts
from raybcgd.record.states import StateFolder
from raybcgd.server.hosts import PoolReport, RoundWork

log = logging.getLogger(__name__)

_LOST = (RayActorError, ActorUnavailableError, ActorUnschedulableError, ObjectLostError)
_IN_FLIGHT = 2
"""Calls waiting at a host, so that it never waits for the coordinator."""
_LOOK_SECONDS = 1.0
"""How often the pool looks for nodes that have joined."""
_USAGE_SECONDS = 5.0
"""How often it asks how full the object store is, which takes milliseconds that short rounds would notice."""
_REMEMBERED = 10
"""Rounds through which a host that has become useless is kept: cohorts differ, and a new host takes long to come."""


class _StoreUsage:
    """Bytes of the object store in use and in all, over the nodes of the cluster."""

    def __init__(self) -> None:
        self._looked: float | None = None
        self._seen = (0, 0)

    def look(self) -> tuple[int, int]:
        """What was seen last: bytes in use, and the capacity."""
        now = time.monotonic()
        if self._looked is None or now - self._looked >= _USAGE_SECONDS:
            self._looked = now
            capacity = ray.cluster_resources().get("object_store_memory", 0.0)  # type: ignore[no-untyped-call]
            free = ray.available_resources().get("object_store_memory", 0.0)  # type: ignore[no-untyped-call]
            self._seen = (max(0, int(capacity - free)), int(capacity))
        return self._seen


@dataclass
class _Host:
    slot: int
    """What stays the same when a lost host is replaced."""
    actor: Any
    ready: Any
    place: HostPlace | None = None
    load: HostLoad = field(default_factory=HostLoad)
    calls: dict[Any, list[ClientTask]] = field(default_factory=dict)


class RayPool:
    """Client hosts on a Ray cluster."""

    def __init__(self, problem: Problem, data: Any, samples: Sequence[np.ndarray], state_address: str) -> None:
        self._problem, self._data, self._state_address = problem, data, state_address
        self._samples, self._phase = samples, 0
        self._config = problem.config.hosts
        if problem.keeps_state:
            StateFolder(state_address).make()
        nodes = node_resources()
        self._needs: HostNeeds = host_needs(self._config, nodes)
        self._wanted = host_count(self._config, self._needs, nodes, problem.cohort_size, problem.clients)
        self._hosts: dict[int, _Host] = {}
        self._fixed = self._config.clients_per_host is not None
        self._number = 0
        self._slots: dict[int, int] = {}
        self._homes: dict[int, int] = {}
        self._times = Times()
        self._counts: Counter[str] = Counter()
        self._queued = 0
        self._broadcast_seconds = 0.0
        self._store = _StoreUsage()
        self._failed_starts: Counter[int] = Counter()
        self._useful: deque[int] = deque(maxlen=_REMEMBERED)
        self._looked = time.monotonic()
        if self._config.max_count is not None and not self._fixed:
            return  # the first round shows how many are of use
        for slot in range(self._wanted):
            self._start_host(slot)
        self._await_host()

    # Hosts

    def _start_host(self, slot: int) -> None:
        run_id = ray.get_runtime_context().get_actor_id() or "driver"
        options = HostActor.options(  # type: ignore[attr-defined]
            name=f"raybcgd-{run_id[:12]}-host-{self._number}",  # for whoever looks at Ray's own dashboard
            num_gpus=self._needs.num_gpus,
            num_cpus=self._needs.num_cpus,
            scheduling_strategy="SPREAD",
        )
        actor = options.remote(self._problem, self._data, self._state_address)
        self._hosts[self._number] = _Host(slot, actor, actor.place.remote())
        self._slots[slot] = self._number
        self._number += 1

    def _up(self) -> list[int]:
        return [number for number, host in self._hosts.items() if host.place is not None]

    def _starting(self) -> dict[Any, int]:
        return {host.ready: number for number, host in self._hosts.items() if host.place is None}

    def _await_host(self) -> None:
        """Wait until at least one host is up."""
        deadline = time.monotonic() + self._config.start_timeout
        while not self._up():
            starting = self._starting()
            left = deadline - time.monotonic()
            done, _ = ray.wait(list(starting), timeout=max(0.0, left))
            if not done:
                raise self._too_late()
            for ref in done:
                self._started(starting[ref])

    def _too_late(self) -> RunError:
        there, free = ray.cluster_resources(), ray.available_resources()  # type: ignore[no-untyped-call]
        return RunError(
            f"no host came up within hosts.start_timeout_seconds = {self._config.start_timeout:g}: each asks for "
            f"{self._needs.words()}, the cluster has {_amounts(there)}, and of these {_amounts(free)} are free; raise "
            "it, or ask for fewer or smaller hosts"
        )

    def _started(self, number: int) -> bool:
        """Take in a host that has answered; start another one where it has died instead."""
        host = self._hosts[number]
        try:
            host.place = ray.get(host.ready)
        except _LOST as error:
            # By slot: a node that is taken away while its hosts start takes all of them, which is one mishap.
            self._failed_starts[host.slot] += 1
            if self._failed_starts[host.slot] > self._config.max_retries:
                raise RunError(f"hosts cannot be started: {last_line(error)}") from None
            self._replace(number)
            return False
        if self._problem.keeps_state and not host.place.sees_states:
            raise ConfigError(
                f"a host on another machine does not see {self._state_address}, where clients keep their states; set "
                "checkpoint.address to a place that every node reaches, such as s3://bucket/path or a shared folder"
            )
        self._failed_starts.clear()
        return True

    def _replace(self, number: int) -> list[ClientTask]:
        """Forget a lost host, start another one, and give back the tasks that were with it."""
        host = self._hosts.pop(number)
        ray.kill(host.actor)  # it may be out of reach rather than dead, and would keep its resources
        self._counts["restarted"] += 1
        self._start_host(host.slot)
        return [task for tasks in host.calls.values() for task in tasks]

    def _resize(self, tasks: Sequence[ClientTask]) -> None:
        """Have as many hosts as are of use: those that nodes have room for or, with `max_count`, can be brought for."""
        if self._config.max_count is None:
            self._look_for_nodes()
        elif not self._fixed:
            self._useful.append(useful_hosts([self._steps(task.client) for task in tasks], self._problem.stack))
            target = min(self._config.max_count, max(self._useful))
            # A host that does not fit yet is a pending actor, for which the autoscaler adds nodes. Ray's other way,
            # request_resources, holds one request for the whole cluster: two runs would overwrite each other's.
            for _ in range(target - len(self._hosts)):
                self._start_host(max(self._slots, default=-1) + 1)
            if len(self._useful) == _REMEMBERED:
                self._give_back(len(self._hosts) - target)

    def _give_back(self, count: int) -> None:
        """Let hosts go: first those that still wait for a node, then those with the fewest neighbours on theirs.

        A node can leave when its last host has.
        """
        for _ in range(count):
            neighbours = Counter(host.place.node for host in self._hosts.values() if host.place is not None)
            number = min(self._hosts, key=lambda n: neighbours[p.node] if (p := self._hosts[n].place) else 0)
            host = self._hosts.pop(number)
            del self._slots[host.slot]
            if host.place is None:
                ray.kill(host.actor)
            else:
                host.actor.__ray_terminate__.remote()  # after the evaluation that it may be at

    def _look_for_nodes(self) -> None:
        """Start more hosts where nodes have joined the cluster."""
        if self._config.count is not None or time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        room = sum(self._needs.capacity(node) for node in node_resources())
        limit = self._problem.cohort_size if self._config.clients_per_host is None else self._wanted
        for _ in range(min(room, limit) - len(self._hosts)):
            self._start_host(max(self._slots) + 1)

    # Training

    def train(self, work: RoundWork) -> Iterator[Outcome]:
        """Run all tasks on the hosts and yield outcomes as they arrive."""
        tasks, orders, deadline = work.tasks, work.orders, work.deadline_seconds
        self._phase = orders.data_phase
        self._cancel_leftovers()
        self._resize(tasks)
        self._await_host()
        end = None if deadline is None else time.monotonic() + deadline  # clients are not late for want of a node
        began = time.perf_counter()
        down_ref = ray.put(dict(work.broadcast))
        self._broadcast_seconds = time.perf_counter() - began
        self._queued = 0
        deal = Deal((), self._fixed, self._problem.stack)
        self._place(deal, tasks)
        attempts: Counter[int] = Counter()
        open_tasks = {task.client for task in tasks}
        while open_tasks:
            self._hand_out(deal, down_ref, orders)
            self._queued = max(self._queued, deal.left)
            calls = {ref: number for number in self._up() for ref in self._hosts[number].calls}
            starting = self._starting()
            limits = [] if calls else [self._config.start_timeout]  # only a host that has not come can go on
            limits += [] if end is None else [max(0.0, end - time.monotonic())]
            done, _ = ray.wait([*calls, *starting], timeout=min(limits, default=None))
            if not done:
                # Ray waits for whole milliseconds, so the deadline may be just ahead.
                if calls or (end is not None and end - time.monotonic() <= 0.01):
                    return
                raise self._too_late()
            for ref in done:
                if ref in starting:
                    if self._started(starting[ref]):
                        deal.join(starting[ref])
                    else:
                        self._place(deal, deal.leave(starting[ref]))
                    continue
                number = calls[ref]
                if number not in self._hosts:
                    continue
                try:
                    outcomes: list[Outcome] = ray.get(ref)
                except _LOST as error:
                    self._redo(number, deal, attempts, orders, error)
                    continue
                del self._hosts[number].calls[ref]
                self._hosts[number].load = outcomes[-1].load
                for outcome in outcomes:
                    self._note(outcome, orders)
                    open_tasks.discard(outcome.client)
                    yield outcome

    def _cancel_leftovers(self) -> None:
        """Take back what a round that met its deadline left waiting at the hosts."""
        for host in self._hosts.values():
            for ref in host.calls:
                ray.cancel(ref)
            host.calls.clear()

    def _place(self, deal: Deal, tasks: Sequence[ClientTask]) -> None:
        """Queue tasks on the hosts that are up or, where clients have fixed hosts, on those."""
        for number in self._hosts if self._fixed else self._up():
            deal.join(number)
        if self._config.clients_per_host is not None:
            self._homes.update((task.client, self._slots[task.client // self._config.clients_per_host]) for task in tasks)
        seconds = [self._times.predict(task.client, self._steps(task.client)) for task in tasks]
        self._counts["rehomed_clients"] += deal.place(tasks, seconds, self._homes)

    def _hand_out(self, deal: Deal, down_ref: Any, orders: RoundOrders) -> None:
        for _ in range(_IN_FLIGHT):
            for number in self._up():
                host = self._hosts[number]
                if len(host.calls) >= _IN_FLIGHT:
                    continue
                chunk = deal.next_chunk(number, self._times.known)
                if not chunk:
                    continue
                for task in chunk:
                    self._counts["rehomed_clients"] += self._homes.get(task.client) != number
                    self._homes[task.client] = number
                host.calls[host.actor.train.remote(chunk, down_ref, orders)] = chunk

    def _redo(self, number: int, deal: Deal, attempts: Counter[int], orders: RoundOrders, error: Exception) -> None:
        """A host is lost: queue its unfinished tasks on the others."""
        lost = self._replace(number)
        self._counts["retried_tasks"] += len(lost)
        attempts.update(task.client for task in lost)
        worst = max(lost, key=lambda task: attempts[task.client], default=None)
        if worst is not None and attempts[worst.client] > self._config.max_retries:
            raise RunError(
                f"the work of client {worst.client} in round {orders.round_index} was lost "
                f"{attempts[worst.client]} times with its host, more than hosts.max_retries = "
                f"{self._config.max_retries}: {last_line(error)}"
            )
        waiting = deal.leave(number)
        self._await_host()
        self._place(deal, [*lost, *waiting])

    def _note(self, outcome: Outcome, orders: RoundOrders) -> None:
        if outcome.error is None:
            self._times.measured(outcome.client, self._steps(outcome.client), outcome.seconds)

    def _steps(self, client: int) -> int:
        return self._problem.config.local.num_steps(int(self._samples[self._phase][client]))

    # Evaluation

    def evaluate(self, models: Sequence[np.ndarray], parts: Sequence[Piece]) -> Callable[[], list[Score]]:
        """Start judging models on the hosts, ahead of the next round's work; the function returned waits for it."""
        self._await_host()
        models_ref = ray.put(list(models))
        hosts = self._up()
        share = -(-len(parts) // len(hosts))
        calls = []
        for k, number in enumerate(hosts):
            mine = parts[k * share : (k + 1) * share]
            if mine:
                calls.append((mine, self._hosts[number].actor.evaluate.remote(mine, models_ref)))
        return lambda: [score for mine, ref in calls for score in self._scores(mine, ref, models_ref)]

    def _scores(self, parts: Sequence[Piece], ref: Any, models_ref: Any) -> list[Score]:
        for attempt in range(self._config.max_retries + 1):
            try:
                scores: list[Score] = ray.get(ref)
                return scores
            except _LOST as error:
                last = error
            self._drop_dead()
            self._await_host()
            up = self._up()
            ref = self._hosts[up[attempt % len(up)]].actor.evaluate.remote(parts, models_ref)
        raise RunError(f"the evaluation was lost with its host more than hosts.max_retries times: {last_line(last)}")

    def _drop_dead(self) -> None:
        """Replace hosts that have died while nobody was waiting for them."""
        for number in self._up():
            try:
                ray.get(self._hosts[number].actor.place.remote())
            except _LOST:
                self._replace(number)

    def report(self) -> PoolReport:
        """Report the hosts since the last call."""
        counts, self._counts = self._counts, Counter()
        loads = [host.load for host in self._hosts.values()]
        on_devices = [load.device_memory_bytes for load in loads if load.device_memory_bytes is not None]
        used, capacity = self._store.look()
        hosts = Hosts(
            up=len(self._up()),
            pending=len(self._starting()),
            queued_tasks=self._queued,
            **counts,
            state_memory_bytes=sum(load.state_memory_bytes for load in loads),
            device_memory_bytes=sum(on_devices) if on_devices else None,
            object_store_bytes=used,
            object_store_capacity_bytes=capacity,
        )
        return PoolReport(hosts, self._broadcast_seconds)

    def close(self) -> None:
        """Let all hosts go."""
        for host in self._hosts.values():
            ray.kill(host.actor)
        self._hosts.clear()


def _amounts(resources: Mapping[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPU and {resources.get('GPU', 0):g} GPU"
