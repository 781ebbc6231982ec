"""The interface between a round and the client hosts, wherever they run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from raybcgd.messages import ClientTask, Outcome, Piece, RoundOrders, Score
from raybcgd.record.rounds import Hosts


@dataclass(frozen=True)
class RoundWork:
    """The training tasks of a round."""

    tasks: Sequence[ClientTask]
    broadcast: Mapping[str, np.ndarray]
    orders: RoundOrders
    deadline_seconds: float | None
    """Drop tasks that take longer. None: wait for all."""


class PoolReport(NamedTuple):
    """Measurements of the hosts since the last report."""

    hosts: Hosts
    broadcast_seconds: float = 0.0
    """The part of the training time that the broadcast took."""


class Pool(Protocol):
    """The client hosts of a run."""

    def train(self, work: RoundWork) -> Iterator[Outcome]:
        """Run all tasks and yield outcomes as they arrive."""

    def evaluate(self, models: Sequence[np.ndarray], pieces: Sequence[Piece]) -> Callable[[], list[Score]]:
        """Start evaluating models. Return a function that waits for the scores."""

    def report(self) -> PoolReport:
        """Return the measurements since the last call."""

    def close(self) -> None:
        """Stop all hosts."""
