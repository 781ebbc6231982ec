"""A worker of the pfl-research simulation. Import it after `join`: pfl reads the variables when it is imported."""

import time
from itertools import pairwise
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.bundle import Bundle
from benchmarks.contestant import Turn


class Net(nn.Module):
    """A model with its loss, as pfl expects it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return nn.functional.cross_entropy(self.inner(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """Return no metrics. pfl requires the method."""
        return {}


class Clock(TrainingProcessCallback):
    """Records when each round ends."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        """Record the time and continue."""
        self.times.append(time.perf_counter())
        return False, Metrics()


class Worker:
    """One of the processes of the simulation."""

    def __init__(self, path: str) -> None:
        torch.set_num_threads(1)
        self._bundle = bundle = Bundle.load(path)
        self._inputs, net = bundle.inputs, Net(bundle.module)
        if bundle.convolutional:
            net = net.to(memory_format=torch.channels_last)
            images = bundle.inputs.flatten(0, 1).to(memory_format=torch.channels_last)
            self._inputs = images.unflatten(0, bundle.targets.shape)
        users = FederatedDataset(self._user, get_user_sampler("minimize_reuse", list(range(bundle.clients))))
        self._backend = SimulatedBackend(users, None)
        self._model = PyTorchModel(
            net,
            lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, weight_decay=bundle.weight_decay, fused=True),
            torch.optim.SGD(net.parameters(), 1.0),
        )

    def _user(self, client: int) -> Dataset:
        targets = self._bundle.targets[client]
        order = torch.randperm(len(targets))
        return Dataset((self._inputs[client][order], targets[order]))

    def run(self, rounds: int) -> Turn:
        """Run rounds together with the other worker."""
        bundle, clock = self._bundle, Clock()
        FederatedAveraging().run(
            NNAlgorithmParams(rounds, rounds + 1, bundle.cohort, None),
            self._backend,
            self._model,
            NNTrainHyperParams(local_learning_rate=bundle.lr, local_num_epochs=1, local_batch_size=bundle.batch),
            callbacks=[clock],
            send_metrics_to_platform=False,
        )
        return Turn([end - start for start, end in pairwise(clock.times)], bundle.loss(bundle.module))
