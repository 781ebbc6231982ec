"""Dealing a round's tasks to hosts: largest first, to a client's home unless that host would be the bottleneck."""

from collections import deque
from collections.abc import Iterable, Sequence

from raybcgd.messages import ClientTask

_SLACK = 0.05
"""A client stays at home while that makes its host at most this share of a fair load busier than the idlest."""
_CHUNK_SECONDS = 0.2
"""A call costs some milliseconds, and a small stack of clients nearly as much as a large one."""
_CHUNK_CLIENTS = 32
"""No smaller chunks than this where clients are trained in stacks."""


class Times:
    """Predicted seconds of clients' work, from what was measured."""

    def __init__(self) -> None:
        self._rates: dict[int, float] = {}
        self._rate: float | None = None

    def predict(self, client: int, steps: int) -> float:
        """Seconds for a client; before anything was measured, its steps, which are right up to a factor."""
        return steps * self._rates.get(client, 1.0 if self._rate is None else self._rate)

    def measured(self, client: int, steps: int, seconds: float) -> None:
        """Remember how long a client took a step, smoothing out noise."""
        rate = seconds / steps
        self._rates[client] = 0.5 * self._rates.get(client, rate) + 0.5 * rate
        self._rate = rate if self._rate is None else 0.9 * self._rate + 0.1 * rate

    @property
    def known(self) -> bool:
        """Whether predictions are in seconds already."""
        return self._rate is not None


class Deal:
    """The tasks of a round that have not been handed out, each in the queue of a host."""

    def __init__(self, hosts: Iterable[int], fixed: bool, stack: int) -> None:
        self._queues: dict[int, deque[tuple[ClientTask, float]]] = {host: deque() for host in hosts}
        self._fixed = fixed
        self._least = max(1, min(stack, _CHUNK_CLIENTS))
        self._fair = 0.0

    def place(self, tasks: Sequence[ClientTask], seconds: Sequence[float], homes: dict[int, int]) -> int:
        """Queue tasks, largest first, and update the clients' homes. Returns how many clients moved."""
        loads = {host: sum(s for _, s in queue) for host, queue in self._queues.items()}
        self._fair = (sum(loads.values()) + sum(seconds)) / len(self._queues)
        moved = 0
        order = sorted(range(len(tasks)), key=lambda k: (-seconds[k], tasks[k].client))
        for k in order:
            task, cost = tasks[k], seconds[k]
            idlest = min(loads, key=lambda host: (loads[host], host))
            home = homes.get(task.client)
            stays = home in loads and (self._fixed or loads[home] <= loads[idlest] + _SLACK * self._fair)
            host = home if stays and home is not None else idlest
            moved += home is not None and home != host
            homes[task.client] = host
            loads[host] += cost
            self._queues[host].append((task, cost))
        return moved

    def join(self, host: int) -> None:
        """A new host can take work."""
        self._queues.setdefault(host, deque())

    def leave(self, host: int) -> list[ClientTask]:
        """A host is gone; its tasks come back."""
        return [task for task, _ in self._queues.pop(host, ())]

    def next_chunk(self, host: int, in_seconds: bool) -> list[ClientTask]:
        """The next tasks for a host, its own or, when it has none left, some of the busiest host's.

        Chunks shrink towards the end of the round, so that hosts finish together.
        """
        queue = self._queues[host]
        if queue:
            aim = max(sum(s for _, s in queue) / 3, _CHUNK_SECONDS if in_seconds else 0.0)
            return self._pop(queue, aim, from_front=True)
        if self._fixed:
            return []
        busiest = max(self._queues.values(), key=lambda q: sum(s for _, s in q))
        left = sum(s for _, s in busiest)
        if len(busiest) <= self._least or (in_seconds and left < _CHUNK_SECONDS):
            return []
        return self._pop(busiest, left / 3, from_front=False)

    def _pop(self, queue: deque[tuple[ClientTask, float]], aim: float, from_front: bool) -> list[ClientTask]:
        chunk: list[ClientTask] = []
        load = 0.0
        while queue and (len(chunk) < self._least or load < aim):
            task, cost = queue.popleft() if from_front else queue.pop()
            chunk.append(task)
            load += cost
        return chunk

    @property
    def left(self) -> int:
        """Jobs that have not been handed out."""
        return sum(len(queue) for queue in self._queues.values())
