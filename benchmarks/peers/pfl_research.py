"""pfl-research: its simulated backend with PyTorch and FedAvg.

    .bench-venv/bin/python -m benchmarks.peers.pfl_research BUNDLE

Setting: two single-threaded processes with `torch.distributed` (gloo), as pfl-research does for several workers; user
data are tensors that stay in memory, shuffled when a user is drawn; convolutional models in channels_last; fused SGD;
no evaluation, no metrics, no callbacks except a clock. Users are drawn with its `minimize_reuse` sampler.
"""

import os
import socket
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

WORKERS = 2


def join(rank: int, port: int) -> None:
    """Set the variables that `torchrun` sets. pfl reads them when it is imported."""
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "bench",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(WORKERS),
        "LOCAL_WORLD_SIZE": str(WORKERS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PFL_PYTORCH_DEVICE": "cpu",
    }


def simulator(path: str) -> Any:
    """Return a function that runs rounds in this process, as one of the workers."""
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

    torch.set_num_threads(1)
    bundle = Bundle.load(path)

    class Net(nn.Module):
        """The model with its loss, as pfl wants it."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = bundle.module

        def loss(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:
            return nn.functional.cross_entropy(self.inner(inputs), targets)

        def metrics(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> dict[str, float]:
            return {}

    class Clock(TrainingProcessCallback):
        """Notes when each round ends."""

        def __init__(self) -> None:
            self.times = [time.perf_counter()]

        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
            self.times.append(time.perf_counter())
            return False, Metrics()

    inputs = bundle.inputs
    net = Net()
    if bundle.convolutional:
        net = net.to(memory_format=torch.channels_last)
        inputs = inputs.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, bundle.targets.shape)

    def user(client: int) -> Dataset:
        order = torch.randperm(bundle.targets.shape[1])
        return Dataset((inputs[client][order], bundle.targets[client][order]))

    backend = SimulatedBackend(
        FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(bundle.clients)))), None
    )
    model = PyTorchModel(
        net,
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, weight_decay=bundle.weight_decay, fused=True),
        torch.optim.SGD(net.parameters(), 1.0),
    )
    training = NNTrainHyperParams(local_learning_rate=bundle.lr, local_num_epochs=1, local_batch_size=bundle.batch)

    def run(rounds: int) -> Turn:
        clock = Clock()
        parameters = NNAlgorithmParams(rounds, rounds + 1, bundle.cohort, None)
        FederatedAveraging().run(
            parameters, backend, model, training, callbacks=[clock], send_metrics_to_platform=False
        )
        seconds = [end - start for start, end in pairwise(clock.times)]
        return Turn(seconds, bundle.loss(bundle.module))

    return run


def main() -> None:
    """Run as the first worker, which starts the second, or as the second one (`BUNDLE PORT`)."""
    path = sys.argv[1]
    if len(sys.argv) > 2:
        join(1, int(sys.argv[2]))
        run = simulator(path)
        for line in sys.stdin:
            run(int(line))
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    second = subprocess.Popen([sys.executable, "-m", __spec__.name, path, str(port)], stdin=subprocess.PIPE, text=True)
    join(0, port)
    run = simulator(path)

    def both(rounds: int) -> Any:
        assert second.stdin is not None
        second.stdin.write(f"{rounds}\n")
        second.stdin.flush()
        return run(rounds)

    from benchmarks.contestant import serve

    serve(both)
    assert second.stdin is not None
    second.stdin.close()
    second.wait(timeout=30)


if __name__ == "__main__":
    main()
