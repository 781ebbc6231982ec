"""[Ray] Schedule the next round while the hosts train this one."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raybcgd.engine.ray.hosts import Host
from raybcgd.engine.ray.scheduling import TaskQueues
from raybcgd.messages import ClientTask, RoundOrders


@dataclass(frozen=True)
class Ahead:
    """The queues of the next round."""

    round_index: int
    queues: TaskQueues
    hosts: frozenset[int]
    """The hosts with a queue."""
    moved: int
    """Number of clients that move to another host."""

    def filled(self, tasks: Sequence[ClientTask], orders: RoundOrders, up: Sequence[int]) -> TaskQueues | None:
        """Return the queues with the tasks of their round, or None if they are for another round or other hosts."""
        if self.round_index != orders.round_index or self.hosts != frozenset(up):
            return None
        self.queues.fill(tasks)
        return self.queues


def prepare_hosts(queues: TaskQueues, orders: RoundOrders, hosts: Mapping[int, Host], in_seconds: bool) -> None:
    """Tell each host which clients its first call will have, so that it prepares their batches when it is idle."""
    for number, host in hosts.items():
        clients = [task.client for task in queues.peek_chunk(number, in_seconds)]
        if clients:
            host.actor.prepare.options(num_returns=0).remote(pickle.dumps((clients, orders)))
