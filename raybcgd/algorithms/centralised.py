"""Centralised SGD: one client holds all clients' data. What federated training is measured against."""

from typing import ClassVar

from raybcgd.algorithms.fedavg import FedAvg


class Centralised(FedAvg):
    """Centralised SGD: one client holds all clients' data. What federated training is measured against.

    A round is that client's local epochs (or steps) over everything that the partition gave to anyone. Its recorded
    traffic is one model a round, which a real data centre would not pay.
    """

    name: ClassVar[str] = "sgd"
    pooled: ClassVar[bool] = True
