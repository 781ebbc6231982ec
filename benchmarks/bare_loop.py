"""The baseline for the round time: FedAvg in plain PyTorch, in a few single-threaded processes.

There is no framework, no Ray and no accounting. Each process holds the normalised data, trains its share of the cohort
with `torch.optim.SGD`, and returns the sum of the models. The parent process computes the mean.
"""

import multiprocessing as mp
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from raybcgd.plan.cohort import draw_cohort
from raybcgd.problem import Data, Problem


def _train(problem: Problem, inputs: torch.Tensor, targets: torch.Tensor, data: Data, pipe: Any) -> None:
    torch.set_num_threads(1)
    module, local = problem.module(), problem.config.local
    algorithm = problem.config.algorithm
    assert isinstance(local.batch_size, int)
    while (order := pipe.recv()) is not None:
        state, clients, lr = order
        total = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        for client in clients:
            module.load_state_dict(state)
            optimiser = torch.optim.SGD(module.parameters(), lr=lr, weight_decay=algorithm.weight_decay)
            rows = torch.from_numpy(data.partitions[0].client(client))
            own_inputs, own_targets = inputs[rows], targets[rows]
            for _ in range(local.epochs):
                for batch in torch.randperm(len(rows)).split(local.batch_size):
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(module(own_inputs[batch]), own_targets[batch]).backward()
                    optimiser.step()
            for name, tensor in module.state_dict().items():
                total[name] += tensor
        pipe.send(total)


class BareLoop:
    """FedAvg rounds in single-threaded processes."""

    def __init__(self, problem: Problem, data: Data, processes: int) -> None:
        dataset = data.dataset
        inputs = torch.from_numpy(dataset.train.inputs).float().div_(dataset.scale)
        shape = (1, -1, *[1] * (inputs.dim() - 2))
        inputs.sub_(torch.tensor(dataset.mean).view(shape)).div_(torch.tensor(dataset.std).view(shape))
        inputs.share_memory_()
        targets = torch.from_numpy(dataset.train.targets.copy()).share_memory_()
        self._problem = problem
        self._state = problem.module().state_dict()
        self._pipes = []
        context = mp.get_context("fork")
        for _ in range(processes):
            here, there = context.Pipe()
            context.Process(target=_train, args=(problem, inputs, targets, data, there), daemon=True).start()
            self._pipes.append(here)

    def round(self, index: int) -> float:
        """Run a round and return its time in seconds."""
        started = time.perf_counter()
        problem = self._problem
        cohort = draw_cohort(problem.config.seed, index, problem.clients, problem.cohort_size, None)
        clients = [member.client for member in cohort]
        lr = problem.config.algorithm.lr_at(index)
        for k, pipe in enumerate(self._pipes):
            pipe.send((self._state, clients[k :: len(self._pipes)], lr))
        totals = [pipe.recv() for pipe in self._pipes]
        self._state = {
            name: torch.stack([total[name] for total in totals]).sum(0) / len(clients) for name in self._state
        }
        return time.perf_counter() - started

    def close(self) -> None:
        """Stop the processes."""
        for pipe in self._pipes:
            pipe.send(None)


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return float(np.median(values))
