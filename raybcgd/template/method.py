"""The method: what a client keeps and sends, and what it does in a round."""

from typing import NamedTuple

from raybcgd import Count, Whole
from raybcgd.algorithms import FedAvg


class FedMemory(FedAvg):
    """FedMemory: FedAvg in which each client mixes its previous mean gradient into its local steps."""

    name = "fedmemory"
    beta: float = 0.1
    """Weight of the previous mean gradient. A field like this one is a setting of [algorithm]."""

    class Client(NamedTuple):
        """What a client keeps between rounds: a vector as long as the model, and a number."""

        m: Whole
        rounds: Count

    def client_rule(self, work, down, mine):
        """Train a client. Return what it uploads, and its new state."""
        x = down.x
        delta = work.sgd(x, lambda g, _: (1 - self.beta) * g + self.beta * mine.m) - x
        return self.Upload(delta=delta), self.Client(m=work.mean_gradient(delta), rounds=mine.rounds + 1)
