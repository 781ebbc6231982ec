"""The interface between a round and the client hosts, wherever they run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from raybcgd.messages import ClientTask, Outcome, Partial, Piece, RoundOrders, Score
from raybcgd.record.rounds import Hosts, LiveHosts


@dataclass(frozen=True)
class RoundWork:
    """The training tasks of a round."""

    tasks: Sequence[ClientTask]
    broadcast: Mapping[str, Tensor]
    orders: RoundOrders
    deadline_seconds: float | None
    """Drop tasks that have not finished after this time. None: wait for all."""


class PoolReport(NamedTuple):
    """Measurements of the hosts since the last report."""

    hosts: Hosts
    broadcast_seconds: float = 0.0
    """The part of the training time that the broadcast took."""


class Inbox(Protocol):
    """Receives the results of a round's training."""

    def meanwhile(self) -> None:
        """Do other work while the hosts train. Engines may call this before they wait for the first result."""

    def receive(self, outcomes: Sequence[Outcome], partial: Partial | None = None) -> None:
        """Take the outcomes of a call, and the sum of the uploads of some clients. Raise an error to stop the round."""


class Pool(Protocol):
    """The client hosts of a run."""

    server_device: torch.device
    """Where the server's vectors are: the CPU, or the accelerator of the only host if it is in this process."""

    def train(self, work: RoundWork, inbox: Inbox) -> None:
        """Run all tasks until the deadline and pass results to the inbox as they arrive.

        A client counts only if its upload arrived: as bytes in its outcome, or in a partial sum. If a host is lost
        before its partial sum arrives, its tasks run again, and their outcomes arrive again.
        """

    def evaluate(self, models: Sequence[Tensor], pieces: Sequence[Piece]) -> Callable[[], list[Score]]:
        """Start evaluating models. Return a function that waits for the scores."""

    def report(self) -> PoolReport:
        """Return the measurements since the last call."""

    def live(self) -> LiveHosts:
        """Return how many hosts are up now. Other threads may call this at any time."""

    def close(self) -> None:
        """Stop all hosts."""
