"""The client states that stay on a host's accelerator between rounds."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from raybcgd.client.state_cache import same_state
from raybcgd.messages import ClientTask, StateRef

Row = tuple[Tensor, ...]
"""The fields of one client's state, in order."""


class DeviceStates:
    """Keeps the latest states of this host's clients on the device, up to a budget.

    They are copies: every state is also in host memory or in a segment. A state is used only if its reference is the
    one that the coordinator committed.
    """

    def __init__(self, budget_bytes: int, row_bytes: int) -> None:
        self._capacity = budget_bytes // row_bytes if row_bytes else 0
        self._held: OrderedDict[int, tuple[StateRef, Row]] = OrderedDict()

    def gather(self, tasks: Sequence[ClientTask], stacked: bool) -> list[Tensor] | None:
        """Return the committed states by field, with a client dimension if stacked. None if one is not here."""
        rows = []
        for task in tasks:
            held = self._held.get(task.client)
            if held is None or not same_state(held[0], task.state):
                return None
            rows.append(held[1])
        return [torch.stack(field) for field in zip(*rows, strict=True)] if stacked else list(rows[0])

    def put(self, tasks: Sequence[ClientTask], refs: Sequence[StateRef], rows: Sequence[Row]) -> None:
        """Keep new states, and drop the least recently used ones."""
        for task, ref, row in zip(tasks, refs, rows, strict=True):
            self._held[task.client] = (ref, row)
            self._held.move_to_end(task.client)
            while len(self._held) > self._capacity:
                self._held.popitem(last=False)

    def clear(self) -> bool:
        """Drop all states. Return whether there were any."""
        held = bool(self._held)
        self._held.clear()
        return held

    def __bool__(self) -> bool:
        """Return whether the budget has room for at least one state."""
        return self._capacity > 0


def assembled(
    fields: Sequence[Any], new: Any, settled: Any, slices: Sequence[slice], count: int, stacked: bool
) -> list[Row]:
    """Return the clients' new states: `settled` on the slices, `new` elsewhere."""
    columns = []
    for field, whole, changed in zip(fields, new, settled, strict=True):
        column = changed
        if field.per_coordinate:
            column, start = whole.clone(), 0
            for s in slices:
                column[..., s] = changed[..., start : start + s.stop - s.start]
                start += s.stop - s.start
        column = column.detach().reshape(count, *whole.shape[1 if stacked else 0 :])
        columns.append(column)
    # A view of a stack would keep the whole stack in memory.
    return [tuple(column[k].clone() if count > 1 else column[k] for column in columns) for k in range(count)]
