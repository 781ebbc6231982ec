"""[Ray] The client hosts of a run: start, replace, scale and stop them."""

import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    ActorUnschedulableError,
    GetTimeoutError,
    ObjectLostError,
    RayActorError,
    RayTaskError,
    TaskUnschedulableError,
    WorkerCrashedError,
)

from raybcgd.engine.demand import Demand
from raybcgd.engine.ray.cluster import node_resources
from raybcgd.engine.ray.host_actor import HostActor, HostPlace
from raybcgd.engine.ray.placement import describe_resources, host_count, host_needs, spread, useful_hosts
from raybcgd.engine.ray.pulse import Pulses
from raybcgd.engine.ray.status import HostStatus
from raybcgd.errors import ConfigError, RunError, last_line
from raybcgd.messages import ClientTask, HostLoad
from raybcgd.problem import Problem
from raybcgd.record.rounds import LiveHosts
from raybcgd.record.states import SegmentFolder

log = logging.getLogger(__name__)

LOST = (
    RayActorError,
    ActorUnavailableError,
    ActorUnschedulableError,
    ObjectLostError,
    TaskUnschedulableError,
    WorkerCrashedError,
)
"""The exceptions that a call raises if its host is lost."""
IDLE_SECONDS = 30.0
"""An idle host that does not answer for this long is replaced."""
_NODE_CHECK_SECONDS = 1.0
"""Time between two checks for new nodes."""
_START_SECONDS = 20.0
"""If no host has come up for this long, the pending ones are probably waiting for room on a node."""
_KEEP_ROUNDS = 10
"""Rounds for which an idle host is kept, because cohorts differ and new hosts are slow to start."""


def retry_delay(failures: int) -> float:
    """Return the seconds to wait after a failed start. A busy machine may need a while to start processes."""
    return min(30.0, 2.0 ** (failures - 1) - 1.0)


@dataclass
class Host:
    """A client host that is up or, while `place` is None, starting."""

    slot: int
    """Stays the same when a lost host is replaced."""
    actor: Any
    ready: Any
    """Reference to the call that returns `place`."""
    place: HostPlace | None = None
    load: HostLoad = field(default_factory=HostLoad)
    calls: dict[Any, list[ClientTask]] = field(default_factory=dict)
    """Training calls in flight and their tasks."""
    isolates: bool = False
    """Whether the call in flight runs a suspect's task, alone."""
    kept: list[ClientTask] = field(default_factory=list)
    """Finished tasks whose uploads are only in the host's partial sum. They are lost with the host."""

    @property
    def unfinished(self) -> list[ClientTask]:
        """The tasks that are lost with the host."""
        return [*self.kept, *self.in_calls]

    @property
    def in_calls(self) -> list[ClientTask]:
        """The tasks in calls that have not ended."""
        return [task for tasks in self.calls.values() for task in tasks]


class HostGroup:
    """The hosts of a run, by number. A replacement keeps the slot and gets a new number."""

    def __init__(
        self,
        problem: Problem,
        data_ref: Any,
        state_address: str,
        actor_class: Any = HostActor,
        demand: Demand | None = None,
        name: str = "raybcgd",
    ) -> None:
        """Start the hosts. Without `demand`, they request memory only if configured. Actor names start with `name`."""
        self._problem, self._data_ref, self._state_address = problem, data_ref, state_address
        self._actor_class, self._name = actor_class, name
        self._config = problem.config.hosts
        if problem.keeps_state:
            SegmentFolder(state_address, problem.state_layout).make()
        nodes = node_resources()
        self._needs = host_needs(self._config, nodes, demand)
        self._useful = problem.cohort_size
        if demand is not None and self._config.max_count is None:
            self._useful = min(self._useful, demand.hosts)
        self._wanted = host_count(self._config, self._needs, nodes, self._useful, problem.clients)
        self.fixed_homes = self._config.clients_per_host is not None
        # Not with an autoscaler, whose nodes come later, nor with fixed homes, which need spare room if a node is lost.
        if self._config.spread and self._config.max_count is None and not self.fixed_homes:
            self._needs = spread(self._needs, nodes, self._wanted)
        self.all: dict[int, Host] = {}
        self.in_slot: dict[int, int] = {}
        self.lost = 0
        """Hosts that were up and had to be replaced."""
        self.hung: set[int] = set()
        """Clients that were running on a host that did not return. They run alone until one of their tasks succeeds."""
        self._last_change = time.monotonic()
        self._numbers = itertools.count()
        self._pulses = Pulses(self._config.silence_seconds)
        self._failed_starts: Counter[int] = Counter()
        self._recently_useful: deque[int] = deque(maxlen=_KEEP_ROUNDS)
        self._nodes_checked = time.monotonic()
        if self._config.max_count is None or self.fixed_homes:  # otherwise, the first round determines the number
            for slot in range(self._wanted):
                self._start(slot)

    def _start(self, slot: int) -> None:
        number = next(self._numbers)
        device = "gpu" if self._needs.num_gpus else "cpu"
        options = self._actor_class.options(
            name=f"{self._name}-host-{slot}-{device}-{number}",  # shown in Ray's dashboard; must be unique
            num_gpus=self._needs.num_gpus,
            num_cpus=self._needs.num_cpus,
            memory=self._needs.memory_bytes or None,
            scheduling_strategy="SPREAD",
        )
        pulse = (self._pulses.address, number)
        actor = options.remote(self._problem, self._data_ref, self._state_address, pulse)
        self.all[number] = Host(slot, actor, actor.place.remote())
        self.in_slot[slot] = number
        self._last_change = time.monotonic()

    def live(self) -> LiveHosts:
        """Return how many hosts are up now. Other threads may call this at any time."""
        hosts = list(self.all.values())
        up = sum(host.place is not None for host in hosts)
        return LiveHosts(up, len(hosts) - up, self.lost)

    def status(self) -> HostStatus:
        """Return what the run is waiting for. Other threads may call this at any time."""
        up, pending, _ = self.live()
        if not pending:
            return HostStatus(up, "")
        room = sum(self._needs.capacity(node) for node in node_resources())
        # Ray does not report whether a host is waiting for room that another run uses, or starting its process.
        waits = room < up + pending or time.monotonic() - self._last_change > _START_SECONDS
        node = f", waiting for a node with room for {self._needs.describe()}" if waits else ""
        hosts = "1 host" if up + pending == 1 else f"{up + pending} hosts"
        return HostStatus(up, f"{up} of {hosts} up{node}")

    def up(self) -> list[int]:
        """Return the hosts that are up."""
        return [number for number, host in self.all.items() if host.place is not None]

    def load(self) -> dict[str, Any]:
        """Return the total memory use of all hosts, and their kinds of devices."""
        loads = [host.load for host in self.all.values()]
        on_devices = [load for load in loads if load.device_memory_bytes is not None]
        return {
            "device": ", ".join(sorted({load.device for load in loads if load.device})) or None,
            "state_memory_bytes": sum(load.state_memory_bytes for load in loads),
            "device_memory_bytes": sum(load.device_memory_bytes or 0 for load in on_devices) if on_devices else None,
            "device_reserved_bytes": sum(load.device_reserved_bytes or 0 for load in on_devices)
            if on_devices
            else None,
        }

    def starting(self) -> dict[Any, int]:
        """Return the hosts that are starting, by the reference to wait for."""
        return {host.ready: number for number, host in self.all.items() if host.place is None}

    def wait_for_any(self) -> None:
        """Wait until at least one host is up."""
        deadline = time.monotonic() + self._config.start_timeout
        while not self.up():
            starting = self.starting()
            done, _ = ray.wait(list(starting), timeout=max(0.0, deadline - time.monotonic()))
            if not done:
                raise self.start_timeout_error()
            for ref in done:
                self.finish_start(starting[ref])

    def start_timeout_error(self) -> RunError:
        total, free = ray.cluster_resources(), ray.available_resources()  # type: ignore[no-untyped-call]
        return RunError(
            f"no host started within hosts.start_timeout_seconds = {self._config.start_timeout:g}: each requests "
            f"{self._needs.describe()}, and the cluster has {describe_resources(total)}, of which "
            f"{describe_resources(free)} are free; raise hosts.start_timeout_seconds, or use fewer or smaller hosts"
        )

    def finish_start(self, number: int) -> bool:
        """Mark a host as up. If it died while it started, replace it and return False."""
        host = self.all[number]
        try:
            host.place = ray.get(host.ready)
        except LOST as error:
            # Counted per slot, because losing a node while its hosts start makes all of them fail together.
            self._failed_starts[host.slot] += 1
            if self._failed_starts[host.slot] > (limit := self._config.max_retries):
                cause = last_line(error)
                raise RunError(f"a host failed to start more than hosts.max_retries = {limit} times: {cause}") from None
            again_after = retry_delay(self._failed_starts[host.slot])
            log.warning("a host failed to start (%s); retrying in %g s", last_line(error), again_after)
            time.sleep(again_after)
            self.replace(number)
            return False
        if host.place.no_device is not None:
            raise ConfigError(
                f"a host was granted GPU {', '.join(host.place.gpus)}, but {host.place.no_device}; install the driver "
                'and a build of torch for it on every node, or set hosts.device = "cpu"'
            )
        if self._problem.keeps_state and not host.place.sees_states:
            raise ConfigError(
                f"a host on another machine cannot reach {self._state_address}, where client states are stored; set "
                "checkpoint.address to one that every node can reach, such as s3://bucket/path or a shared folder"
            )
        self._failed_starts.clear()
        self._last_change = time.monotonic()
        self._pulses.watch(number, partial(ray.kill, host.actor))
        return True

    def may_run(self, task: ClientTask, number: int) -> bool:
        """Return whether a host may run a task: any may, unless clients are tied to hosts."""
        per_host = self._config.clients_per_host
        return per_host is None or self.in_slot[task.client // per_host] == number

    def replace(self, number: int) -> None:
        """Start a new host in place of a lost one."""
        host = self._remove(number)
        ray.kill(host.actor)  # if it is unreachable but alive, it would keep its resources
        self.lost += host.place is not None  # a failed start is not a lost host
        self._start(host.slot)

    def _remove(self, number: int) -> Host:
        self._pulses.forget(number)
        return self.all.pop(number)

    def replace_dead(self) -> None:
        """Replace hosts that died without a call in flight."""
        for number in self.up():
            try:
                ray.get(self.all[number].actor.place.remote(), timeout=IDLE_SECONDS)
            except (*LOST, GetTimeoutError):
                self.replace(number)

    def scale(self, steps: Sequence[int]) -> None:
        """Scale the hosts to what this round can use, up to the cluster's capacity or `max_count`."""
        if self._config.max_count is None:
            self._fill_new_nodes()
        elif not self.fixed_homes:
            self._recently_useful.append(useful_hosts(steps, self._problem.stack))
            target = min(self._config.max_count, max(self._recently_useful))
            # The autoscaler adds nodes for pending actors. request_resources() would apply to all runs.
            for _ in range(target - len(self.all)):
                self._start(max(self.in_slot, default=-1) + 1)
            if len(self._recently_useful) == _KEEP_ROUNDS:
                self._release(len(self.all) - target)

    def _fill_new_nodes(self) -> None:
        if self._config.count is not None or time.monotonic() - self._nodes_checked < _NODE_CHECK_SECONDS:
            return
        self._nodes_checked = time.monotonic()
        room = sum(self._needs.capacity(node) for node in node_resources())
        limit = self._wanted if self.fixed_homes else self._useful
        for _ in range(min(room, limit) - len(self.all)):
            self._start(max(self.in_slot) + 1)

    def _release(self, count: int) -> None:
        """Stop hosts: first those without a node, then those on the node with the fewest hosts, to free whole nodes."""
        for _ in range(count):
            per_node = Counter(host.place.node for host in self.all.values() if host.place is not None)
            number = min(self.all, key=lambda n: per_node[place.node] if (place := self.all[n].place) else 0)
            host = self._remove(number)
            del self.in_slot[host.slot]
            if host.place is None:
                ray.kill(host.actor)
            else:
                host.actor.__ray_terminate__.remote()  # after any evaluation in progress

    def end_calls(self, seconds: float) -> None:
        """Cancel the calls still running at a round's deadline. Replace hosts that are still busy after `seconds`."""
        running = {number: next(iter(host.calls.values())) for number, host in self.all.items() if host.calls}
        asked = {number: host.actor.place.remote() for number, host in self.all.items() if host.calls}
        self.cancel_calls()
        if not asked:
            return
        answered, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=seconds)
        for number, ref in asked.items():
            try:
                ray.get(ref, timeout=0 if ref not in answered else None)
            except (*LOST, GetTimeoutError):
                log.warning("host %d did not return within %g s of the deadline; replacing it", number, seconds)
                self.hung.update(task.client for task in running[number])
                self.replace(number)

    def cancel_calls(self) -> None:
        """Cancel all calls in flight, and forget the tasks of the round."""
        for host in self.all.values():
            for ref in host.calls:
                ray.cancel(ref)
            host.calls.clear()
            host.kept.clear()
            host.isolates = False

    def stop(self) -> None:
        """Stop all hosts."""
        self._pulses.close()
        for host in self.all.values():
            ray.kill(host.actor)
        self.all.clear()


def unwrapped(error: RayTaskError) -> Exception:
    """Return the exception that Ray wrapped, if it is one of ours."""
    cause = getattr(error, "cause", error)
    return cause if isinstance(cause, (RunError, ConfigError)) else error
