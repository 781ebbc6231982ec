"""[Ray] Find the client that crashes its host: after a loss, the tasks of the lost calls run alone."""

import math
from collections import Counter
from collections.abc import Callable

from raybcgd.engine.ray.hosts import Host
from raybcgd.errors import last_line
from raybcgd.messages import FRESH, ClientTask, Outcome

_CRASHES = 3
"""If a client's host dies this many times while it trains only this client, the client is the cause."""


class Suspects:
    """The tasks of a round that were in a call when their host was lost, or whose client has blocked a host before."""

    def __init__(self, max_retries: int) -> None:
        self.tasks: list[ClientTask] = []
        self._limit = min(_CRASHES, max(1, max_retries))
        self._times_alone: Counter[int] = Counter()

    def take(self, host: Host, fits: Callable[[ClientTask], bool]) -> list[ClientTask]:
        """Take one task, to run alone on a host without calls."""
        found = [] if host.calls else list(filter(fits, self.tasks))[:1]
        self.tasks = [task for task in self.tasks if task not in found]
        return found

    def add(self, host: Host, error: Exception) -> Outcome | None:
        """Add the tasks in a lost host's calls. If one client has crashed its hosts, return its failure."""
        self.tasks += host.in_calls
        running = next(iter(host.calls.values()), [])  # a host runs its calls in order
        if len(running) != 1:
            return None
        client = running[0].client
        self._times_alone[client] += 1
        if (times := self._times_alone[client]) < self._limit:
            return None
        self.tasks = [task for task in self.tasks if task.client != client]
        cause = f"its process died {'once' if times == 1 else f'{times} times'} ({last_line(error)})"
        return Outcome(client, None, FRESH, 0.0, math.nan, error=cause)
