"""The stacks of clients that a host trains. A stack can be prepared before its round starts."""

from collections.abc import Sequence

from raybcgd.client.gradients import ClientStack, StackGradient
from raybcgd.client.shards import Shards
from raybcgd.messages import RoundOrders
from raybcgd.model.flat import FlatModel
from raybcgd.problem import Problem

_PREFETCH_BYTES = 2**25
"""Maximum size of the inputs to gather in advance. Larger batches take so long to train that it saves little."""

Key = tuple[tuple[int, ...], int, int]
"""The clients of a stack, the round and the data phase. They determine its batches."""


class Stacks:
    """Makes stacks, and keeps one that was prepared in advance."""

    def __init__(self, problem: Problem, flat: FlatModel, gradient: StackGradient, shards: Shards) -> None:
        self._flat, self._gradient, self._shards = flat, gradient, shards
        size, largest = problem.config.local.batch_size, problem.largest_client
        self._batch_rows = largest if size == "full" else min(size, largest)
        self._size = max(problem.stack, 1)
        self._prepared: tuple[Key, ClientStack] | None = None

    def cuts(self, count: int, alone: bool = False) -> list[int]:
        """Return where the clients of a call are cut into stacks of about the same size."""
        stacks = -(-count // (1 if alone else self._size))
        return [k * count // max(stacks, 1) for k in range(stacks + 1)]

    def prepare(self, clients: Sequence[int], orders: RoundOrders) -> None:
        """Draw and gather the batches of the first stack of a call that will probably come next."""
        self._prepared = None  # frees its memory first
        first = clients[: self.cuts(len(clients))[1]]
        stack = self._make(first, orders)
        stack.prefetch(_PREFETCH_BYTES)
        self._prepared = _key(first, orders), stack

    def take(self, clients: Sequence[int], orders: RoundOrders) -> ClientStack:
        """Return the prepared stack if it is the right one, otherwise a new one."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared[0] == _key(clients, orders):
            return prepared[1]
        return self._make(clients, orders)

    def _make(self, clients: Sequence[int], orders: RoundOrders) -> ClientStack:
        return ClientStack(self._flat, self._gradient, self._shards.shards(clients, orders), self._batch_rows)


def _key(clients: Sequence[int], orders: RoundOrders) -> Key:
    return tuple(clients), orders.round_index, orders.data_phase
