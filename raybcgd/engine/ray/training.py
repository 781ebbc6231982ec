"""[Ray] The state of one round of training."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from raybcgd.engine.ray.scheduling import TaskQueues
from raybcgd.engine.ray.suspects import Suspects
from raybcgd.messages import RoundOrders
from raybcgd.server.pool import Inbox


@dataclass
class Training:
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
