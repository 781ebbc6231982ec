"""Schedule tasks: longest first, and on the client's home host unless that host would be the bottleneck.

The time to schedule a task is logarithmic in the number of hosts.
"""

import heapq
from collections import deque
from collections.abc import Sequence

from raybcgd.messages import ClientTask

_HOME_SLACK = 0.01
"""A client stays on its home host if the load there exceeds the mean load, or that of the least loaded host, by at
most this fraction of the mean. With a larger fraction, the size of the stacks would change in every round."""
_CHUNK_SECONDS = 0.2
"""Minimum work per call. A call costs a few milliseconds, and a small stack takes almost as long as a large one."""
_CHUNK_CLIENTS = 32
"""Minimum number of clients per call if clients train in stacks."""


class TaskTimes:
    """Predicted time per client task, from measured times.

    The time of a stack says nothing about its clients, so stacked clients all get the mean time per step. Otherwise
    noise would move clients between hosts, and change the size of the stacks, in every round.
    """

    def __init__(self, stacked: bool) -> None:
        self._stacked = stacked
        self._step_seconds: dict[int, float] = {}
        self._mean_step_seconds: float | None = None

    def predict(self, client: int, steps: int) -> float:
        """Return the predicted seconds of a task; before the first measurement, its number of steps."""
        mean = self._mean_step_seconds
        return steps * self._step_seconds.get(client, 1.0 if mean is None else mean)

    def add(self, client: int, steps: int, seconds: float) -> None:
        """Add a measurement to the moving averages of the client and of all clients."""
        rate, mean = seconds / steps, self._mean_step_seconds
        if not self._stacked:
            self._step_seconds[client] = 0.5 * self._step_seconds.get(client, rate) + 0.5 * rate
        self._mean_step_seconds = rate if mean is None else 0.9 * mean + 0.1 * rate

    @property
    def in_seconds(self) -> bool:
        """Whether predictions are in seconds, not in steps."""
        return self._mean_step_seconds is not None


class _Queue:
    """The waiting tasks of a host, with their predicted times."""

    def __init__(self) -> None:
        self.tasks: deque[tuple[ClientTask, float]] = deque()
        self.load = 0.0

    def append(self, task: ClientTask, seconds: float) -> None:
        self.tasks.append((task, seconds))
        self.load += seconds

    def take(self, min_clients: int, seconds: float, from_front: bool) -> list[ClientTask]:
        """Remove and return at least `min_clients` tasks that take at least `seconds` in total, or all tasks."""
        chunk: list[ClientTask] = []
        taken = 0.0
        while self.tasks and (len(chunk) < min_clients or taken < seconds):
            task, cost = self.tasks.popleft() if from_front else self.tasks.pop()
            chunk.append(task)
            taken += cost
        self.load = self.load - taken if self.tasks else 0.0
        return chunk


class _Heap:
    """Finds the host with the smallest key. Outdated entries are skipped."""

    def __init__(self) -> None:
        self._keys: dict[int, float] = {}
        self._entries: list[tuple[float, int]] = []

    def set(self, host: int, key: float) -> None:
        self._keys[host] = key
        heapq.heappush(self._entries, (key, host))

    def remove(self, host: int) -> None:
        self._keys.pop(host, None)

    def first(self) -> int:
        while self._keys.get(self._entries[0][1]) != self._entries[0][0]:
            heapq.heappop(self._entries)
        return self._entries[0][1]


class TaskQueues:
    """The tasks of a round that are not in a call yet, one queue per host."""

    def __init__(self, fixed_homes: bool, stack: int, by_block: bool = False) -> None:
        self._queues: dict[int, _Queue] = {}
        self._busiest = _Heap()
        self._fixed_homes, self._by_block = fixed_homes, by_block
        self._min_clients = max(1, min(stack, _CHUNK_CLIENTS))
        self.num_waiting = 0
        """Number of tasks in all queues."""

    def assign(self, tasks: Sequence[ClientTask], seconds: Sequence[float], homes: dict[int, int]) -> int:
        """Queue tasks on hosts, longest first. Update the clients' homes and return how many clients moved.

        With `by_block`, clients with the same block are queued on as few hosts as possible instead of on their homes,
        so that each host adds up only a few blocks.
        """
        idlest, queues = _Heap(), self._queues
        for host, queue in queues.items():
            idlest.set(host, queue.load)
        mean_load = (sum(queue.load for queue in queues.values()) + sum(seconds)) / len(queues)
        slack, moved, host_of_block = _HOME_SLACK * mean_load, 0, dict[int | None, int]()
        for k in sorted(range(len(tasks)), key=lambda k: (-seconds[k], tasks[k].block or 0, tasks[k].client)):
            task, cost = tasks[k], seconds[k]
            home, host = homes.get(task.client), idlest.first()
            if self._by_block:
                preferred = host_of_block.get(task.block, host)
                host = preferred if queues[preferred].load + cost <= mean_load + slack else host
                host_of_block[task.block] = host
            elif home in queues:
                # A home takes tasks up to the mean load, even while the other hosts have far less.
                fits = queues[home].load + cost <= mean_load + slack or queues[home].load <= queues[host].load + slack
                host = home if self._fixed_homes or fits else host
            moved += home is not None and home != host
            homes[task.client] = host
            queues[host].append(task, cost)
            idlest.set(host, queues[host].load)
        for host, queue in queues.items():
            self._busiest.set(host, -queue.load)
        self.num_waiting += len(tasks)
        return moved

    def add_host(self, host: int) -> None:
        """Add an empty queue for a host, if it has none."""
        if host not in self._queues:
            self._queues[host] = _Queue()
            self._busiest.set(host, 0.0)

    def remove_host(self, host: int) -> list[ClientTask]:
        """Remove a lost host and return its tasks."""
        queue = self._queues.pop(host, _Queue())
        self._busiest.remove(host)
        self.num_waiting -= len(queue.tasks)
        return [task for task, _ in queue.tasks]

    def take_chunk(self, host: int, in_seconds: bool) -> list[ClientTask]:
        """Take the next tasks for a host: from its own queue, or from the busiest host's if its own is empty."""
        queue = self._queues[host]
        if queue.tasks:  # chunks shrink towards the end of a round, so that all hosts finish together
            target = max(queue.load / 3, _CHUNK_SECONDS if in_seconds else 0.0)
            return self._take(host, self._min_clients, target, from_front=True)
        if self._fixed_homes or not self.num_waiting:
            return []
        busiest = self._busiest.first()
        load, length = self._queues[busiest].load, len(self._queues[busiest].tasks)
        if length <= self._min_clients or (in_seconds and load < _CHUNK_SECONDS):
            return []
        return self._take(busiest, self._min_clients, load / 3, from_front=False)

    def _take(self, host: int, min_clients: int, seconds: float, from_front: bool) -> list[ClientTask]:
        chunk = self._queues[host].take(min_clients, seconds, from_front)
        self._busiest.set(host, -self._queues[host].load)
        self.num_waiting -= len(chunk)
        return chunk

    def is_empty(self, host: int) -> bool:
        """Return whether no tasks wait for a host."""
        return not self._queues[host].tasks
