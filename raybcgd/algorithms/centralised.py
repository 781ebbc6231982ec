"""Centralised SGD: one client holds the data of all clients. The reference for federated training."""

from typing import ClassVar

from raybcgd.algorithms.fedavg import FedAvg


class Centralised(FedAvg):
    """Centralised SGD: one client holds the data of all clients. The reference for federated training.

    A round is this client's local epochs (or steps) over all samples in the partition. Ignore the recorded traffic, one
    model per round in each direction: centralised training has none.
    """

    name: ClassVar[str] = "sgd"
    pooled: ClassVar[bool] = True
