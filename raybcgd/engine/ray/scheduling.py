"""Schedule tasks: longest first, and on the client's home host unless that host would be the bottleneck."""

from collections import deque
from collections.abc import Iterable, Sequence

from raybcgd.messages import ClientTask

_HOME_SLACK = 0.05
"""A client stays on its home host if that host's load exceeds the lowest by at most this fraction of the mean."""
_CHUNK_SECONDS = 0.2
"""Minimum work per call: a call costs a few milliseconds, and a small stack takes almost as long as a large one."""
_CHUNK_CLIENTS = 32
"""Minimum clients per call if clients are trained in stacks."""


class TaskTimes:
    """Predicted time per client task, from measured times."""

    def __init__(self) -> None:
        self._step_seconds: dict[int, float] = {}
        self._mean_step_seconds: float | None = None

    def predict(self, client: int, steps: int) -> float:
        """Return the expected seconds of a task; before the first measurement, its number of steps."""
        mean = self._mean_step_seconds
        return steps * self._step_seconds.get(client, 1.0 if mean is None else mean)

    def add(self, client: int, steps: int, seconds: float) -> None:
        """Add a measurement to the moving averages of the client and of all clients."""
        rate, mean = seconds / steps, self._mean_step_seconds
        self._step_seconds[client] = 0.5 * self._step_seconds.get(client, rate) + 0.5 * rate
        self._mean_step_seconds = rate if mean is None else 0.9 * mean + 0.1 * rate

    @property
    def in_seconds(self) -> bool:
        """Whether predictions are in seconds, not in steps."""
        return self._mean_step_seconds is not None


class TaskQueues:
    """The tasks of a round that are not in a call yet, one queue per host."""

    def __init__(self, fixed_homes: bool, stack: int) -> None:
        self._queues: dict[int, deque[tuple[ClientTask, float]]] = {}
        self._fixed_homes = fixed_homes
        self._min_clients = max(1, min(stack, _CHUNK_CLIENTS))

    def assign(self, tasks: Sequence[ClientTask], seconds: Sequence[float], homes: dict[int, int]) -> int:
        """Queue tasks on hosts, longest first. Update the clients' homes and return how many clients moved."""
        loads = {host: _load(queue) for host, queue in self._queues.items()}
        mean_load = (sum(loads.values()) + sum(seconds)) / len(self._queues)
        moved = 0
        for k in sorted(range(len(tasks)), key=lambda k: (-seconds[k], tasks[k].client)):
            task, cost = tasks[k], seconds[k]
            idlest = min(loads, key=lambda host: (loads[host], host))
            home = homes.get(task.client)
            stays = home in loads and (self._fixed_homes or loads[home] <= loads[idlest] + _HOME_SLACK * mean_load)
            host = home if stays and home is not None else idlest
            moved += home is not None and home != host
            homes[task.client] = host
            loads[host] += cost
            self._queues[host].append((task, cost))
        return moved

    def add_host(self, host: int) -> None:
        """Add an empty queue for a host, if it has none."""
        self._queues.setdefault(host, deque())

    def remove_host(self, host: int) -> list[ClientTask]:
        """Remove a lost host and return its tasks."""
        return [task for task, _ in self._queues.pop(host, ())]

    def take_chunk(self, host: int, in_seconds: bool) -> list[ClientTask]:
        """Take the next tasks for a host: from its own queue, or from the busiest host's if its own is empty."""
        queue = self._queues[host]
        if queue:  # chunks shrink towards the end of a round, so that all hosts finish together
            return self._take(queue, max(_load(queue) / 3, _CHUNK_SECONDS if in_seconds else 0.0), from_front=True)
        if self._fixed_homes:
            return []
        busiest = max(self._queues.values(), key=_load)
        if len(busiest) <= self._min_clients or (in_seconds and _load(busiest) < _CHUNK_SECONDS):
            return []
        return self._take(busiest, _load(busiest) / 3, from_front=False)

    def _take(self, queue: deque[tuple[ClientTask, float]], target: float, from_front: bool) -> list[ClientTask]:
        chunk: list[ClientTask] = []
        load = 0.0
        while queue and (len(chunk) < self._min_clients or load < target):
            task, cost = queue.popleft() if from_front else queue.pop()
            chunk.append(task)
            load += cost
        return chunk

    @property
    def num_waiting(self) -> int:
        """Number of tasks in all queues."""
        return sum(len(queue) for queue in self._queues.values())


def _load(queue: Iterable[tuple[ClientTask, float]]) -> float:
    return sum(cost for _, cost in queue)
