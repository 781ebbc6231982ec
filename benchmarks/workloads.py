"""The two workloads, as raybcgd configs and as bundles for the other contestants."""

from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.bundle import Bundle
from raybcgd.config import make_config
from raybcgd.problem import Data, Problem

HOSTS = 2
LR = 0.05
BLOCKWISE_LR = 0.01
"""Step size of block methods. With `LR`, blocks of different clients do not fit together, and the loss first rises."""
WEIGHT_DECAY = 0.001


@dataclass(frozen=True)
class Workload:
    """One model on one data set, with samples spread evenly over the clients."""

    name: str
    title: str
    source: str
    root: str
    model: str
    clients: int
    samples: int
    cohort: int
    batch: int
    bare: tuple[str, ...]
    """The variants of the bare loop that suit the model."""
    blocks: dict[str, Any]
    """The division into blocks for FedBCGD and FedBCGD+."""

    def settings(self, algorithm: str, epochs: int) -> dict[str, Any]:
        """Return the settings of a run. Checkpoints and evaluation are off: no other contestant has them."""
        blockwise = algorithm.startswith("fedbcgd")
        return {
            "engine": "ray",
            "data": {
                "source": self.source,
                "root": self.root,
                "partition": {"kind": "iid", "clients": self.clients, "samples_per_client": self.samples},
            },
            "model": {"name": self.model},
            "blocks": self.blocks if blockwise else {"count": 1, "shared": "none", "division": "equal"},
            "algorithm": {
                "name": algorithm,
                "lr": BLOCKWISE_LR if blockwise else LR,
                "lr_decay": 1.0,
                "weight_decay": WEIGHT_DECAY,
            },
            "local": {"epochs": epochs, "batch_size": self.batch},
            "cohort": {"clients_per_round": self.cohort},
            "hosts": {"count": HOSTS},
            "evaluation": {"every": 10_000},
            "checkpoint": {"every": 0},
        }

    def config(self, algorithm: str = "fedavg", epochs: int = 1, rounds: int = 1) -> Any:
        """Return a config."""
        return make_config({**self.settings(algorithm, epochs), "rounds": rounds})


def w1(root: str, quick: bool) -> Workload:
    """Return the workload in which training dominates."""
    cohort = 4 if quick else 20
    return Workload(
        name="W1",
        title=f"LeNet-5 (797 k), CIFAR-10, {cohort} of 100 clients x 100 images, batch 50",
        source="parquet",
        root=root,
        model="lenet5",
        clients=100,
        samples=100,
        cohort=cohort,
        batch=50,
        bare=("plain", "channels_last"),
        blocks={"division": "lenet5"},
    )


def w2(root: str) -> Workload:
    """Return the workload in which overheads dominate."""
    return Workload(
        name="W2",
        title="logistic regression (7 850), Fashion-MNIST, 100 of 1 000 clients x 60 images, batch 20",
        source="fashion_mnist",
        root=root,
        model="logistic",
        clients=1000,
        samples=60,
        cohort=100,
        batch=20,
        bare=("plain", "vmap"),
        blocks={"division": "equal", "count": 5, "shared": "none"},
    )


def bundle(workload: Workload, problem: Problem, data: Data) -> Bundle:
    """Return the clients' normalised samples and the initial model."""
    dataset, partition = data.dataset, data.partitions[0]
    rows = torch.from_numpy(partition.indices)
    inputs = torch.from_numpy(dataset.train.inputs)[rows].float().div_(dataset.scale)
    shape = (1, -1, 1, 1)
    inputs.sub_(torch.tensor(dataset.mean).view(shape)).div_(torch.tensor(dataset.std).view(shape))
    targets = torch.from_numpy(dataset.train.targets)[rows]
    per_client = (workload.clients, workload.samples)
    return Bundle(
        inputs=inputs.unflatten(0, per_client).contiguous(),
        targets=targets.view(per_client),
        module=problem.module(),
        cohort=workload.cohort,
        batch=workload.batch,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
    )
