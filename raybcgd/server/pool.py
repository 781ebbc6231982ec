"""What a round needs from the client hosts, wherever they run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from raybcgd.messages import ClientTask, Outcome, Piece, RoundOrders, Score
from raybcgd.record.rounds import Hosts


@dataclass(frozen=True)
class RoundWork:
    """The training of one round."""

    tasks: Sequence[ClientTask]
    broadcast: Mapping[str, np.ndarray]
    orders: RoundOrders
    deadline_seconds: float | None
    """Tasks that take longer are left out; None: wait for all."""


class PoolReport(NamedTuple):
    """The hosts since the last report."""

    hosts: Hosts
    broadcast_seconds: float = 0.0
    """The part of the training time that went into the broadcast."""


class Pool(Protocol):
    """The client hosts of a run."""

    def train(self, work: RoundWork) -> Iterator[Outcome]:
        """Run all tasks and yield outcomes as they arrive."""

    def evaluate(self, models: Sequence[np.ndarray], pieces: Sequence[Piece]) -> Callable[[], list[Score]]:
        """Start evaluating models; the returned function waits for the scores."""

    def report(self) -> PoolReport:
        """Report what happened since the last call."""

    def close(self) -> None:
        """Stop all hosts."""
