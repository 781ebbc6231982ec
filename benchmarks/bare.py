"""The lower bound of the round time: FedAvg in plain PyTorch, in two single-threaded processes.

    python -m benchmarks.bare BUNDLE plain|channels_last|vmap

There is no framework and no accounting. The global model and the sums of the local models are flat vectors in shared
memory. Each process holds the normalised data and trains its half of the cohort; only client numbers are sent.

plain: one client after another with `torch.optim.SGD`. channels_last: the same with model and images in channels_last.
vmap: all clients of a process as one stack with `torch.func.vmap`, one vectorised step for all of them.
"""

import multiprocessing as mp
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.bundle import Bundle
from benchmarks.contestant import Turn, serve

PROCESSES = 2


class Loop:
    """One client after another."""

    def __init__(self, bundle: Bundle, channels_last: bool) -> None:
        self._bundle, self._inputs, self._module = bundle, bundle.inputs, bundle.module
        if channels_last:
            self._module = self._module.to(memory_format=torch.channels_last)
            flat = self._inputs.flatten(0, 1).to(memory_format=torch.channels_last)
            self._inputs = flat.unflatten(0, bundle.targets.shape)
        self._parameters = list(self._module.parameters())
        self._optimiser = torch.optim.SGD(self._parameters, lr=bundle.lr, weight_decay=bundle.weight_decay, fused=True)

    def train(self, clients: Tensor, x: list[Tensor], total: list[Tensor]) -> None:
        """Train the clients from the global model x and add their models to `total`."""
        bundle, optimiser = self._bundle, self._optimiser
        for client in clients:
            with torch.no_grad():
                torch._foreach_copy_(self._parameters, x)
            inputs, targets = self._inputs[client], bundle.targets[client]
            for batch in torch.randperm(len(targets)).split(bundle.batch):
                optimiser.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(self._module(inputs[batch]), targets[batch]).backward()
                optimiser.step()
            torch._foreach_add_(total, [parameter.detach() for parameter in self._parameters])


class Stack:
    """All clients as one stack."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle, module = bundle, bundle.module

        def loss(parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
            return nn.functional.cross_entropy(functional_call(module, parameters, (inputs,)), targets)

        self._gradients = vmap(grad(loss))
        self._names = list(stack_module_state([module])[0])

    @torch.no_grad()
    def train(self, clients: Tensor, x: list[Tensor], total: list[Tensor]) -> None:
        """Train the clients from the global model x and add their models to `total`."""
        bundle, samples = self._bundle, self._bundle.targets.shape[1]
        y = [tensor.expand(len(clients), *tensor.shape).clone() for tensor in x]
        orders = torch.rand(len(clients), samples).argsort(1)
        for rows in orders.split(bundle.batch, 1):
            batch = clients[:, None], rows
            gradients = self._gradients(
                dict(zip(self._names, y, strict=True)), bundle.inputs[batch], bundle.targets[batch]
            )
            torch._foreach_mul_(y, 1 - bundle.lr * bundle.weight_decay)
            torch._foreach_add_(y, [gradients[name] for name in self._names], alpha=-bundle.lr)
        for mine, stacked in zip(total, y, strict=True):
            mine.add_(stacked.sum(0))


def work(path: str, variant: str, x: Tensor, total: Tensor, pipe: Any) -> None:
    """Train the clients that arrive on the pipe, until None."""
    torch.set_num_threads(1)
    bundle = Bundle.load(path)
    shapes = [parameter.shape for parameter in bundle.module.parameters()]
    views = [_views(vector, shapes) for vector in (x, total)]
    trainer = Stack(bundle) if variant == "vmap" else Loop(bundle, variant == "channels_last")
    pipe.send(None)
    while (clients := pipe.recv()) is not None:
        total.zero_()
        trainer.train(torch.from_numpy(clients), *views)
        pipe.send(None)


def _views(vector: Tensor, shapes: list[torch.Size]) -> list[Tensor]:
    return [
        part.view(shape) for part, shape in zip(vector.split([shape.numel() for shape in shapes]), shapes, strict=True)
    ]


class Bare:
    """The parent of the two processes."""

    def __init__(self, path: str, variant: str) -> None:
        torch.set_num_threads(1)
        self._bundle = Bundle.load(path)
        self._rng = np.random.default_rng(0)
        self._x = parameters_to_vector(self._bundle.module.parameters()).detach().clone().share_memory_()
        self._totals = [torch.zeros_like(self._x).share_memory_() for _ in range(PROCESSES)]
        self._pipes = []
        context = mp.get_context("spawn")
        for total in self._totals:
            here, there = context.Pipe()
            context.Process(target=work, args=(path, variant, self._x, total, there), daemon=True).start()
            self._pipes.append(here)
        self._wait()

    def _wait(self) -> None:
        for pipe in self._pipes:
            pipe.recv()

    def _round(self) -> float:
        started = time.perf_counter()
        cohort = self._rng.choice(self._bundle.clients, self._bundle.cohort, replace=False)
        for clients, pipe in zip(np.array_split(cohort, PROCESSES), self._pipes, strict=True):
            pipe.send(clients)
        self._wait()
        torch.add(*self._totals, out=self._x).div_(len(cohort))
        return time.perf_counter() - started

    def run(self, rounds: int) -> Turn:
        """Run rounds."""
        seconds = [self._round() for _ in range(rounds)]
        vector_to_parameters(self._x, self._bundle.module.parameters())
        return Turn(seconds, self._bundle.loss(self._bundle.module))


if __name__ == "__main__":
    serve(Bare(sys.argv[1], sys.argv[2]).run)
