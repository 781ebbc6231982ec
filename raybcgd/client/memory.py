"""Predict a host's memory on an accelerator by training one stack on the CPU and counting the tensors."""

import gc
import math
import tempfile
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raybcgd.aggregation.exact import chunks_of_an_accelerator
from raybcgd.algorithms.api import Round
from raybcgd.client.device import CPU
from raybcgd.client.host import ClientHost, one_thread
from raybcgd.config.schema import Config
from raybcgd.data.normalise import input_dtype
from raybcgd.messages import ClientTask, Piece, RoundOrders
from raybcgd.problem import Data, Problem

_STEPS = 2
"""Local steps of the measurement. The second step is the first with momentum."""


class MemoryEstimate(NamedTuple):
    """Bytes of a host's tensors on its device. Torch reserves more, because it caches freed memory."""

    samples: int
    """Training samples that stay on the device."""
    states: int
    """Client states that stay on the device."""
    broadcast: int
    """The global model and the other vectors of the broadcast."""
    work: int
    """Peak of everything else: model, activations, local training of a stack, sums, evaluation."""

    @property
    def total(self) -> int:
        return sum(self)


class _Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensor storages in use, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def predict(problem: Problem, data: Data) -> MemoryEstimate:
    """Predict the memory of a host that trains the largest clients. This trains for two local steps on the CPU."""
    config = problem.config
    tasks = _largest(problem, data)
    fields = problem.algorithm.Client._fields
    row = sum(
        np.dtype(array.dtype).itemsize * math.prod(array.shape)
        for array in problem.state_layout.arrays
        if array.name.removeprefix("algorithm.") in fields
    )
    down = _broadcast(problem, len(data.partitions))
    resident = int(min(config.hosts.device_state_memory_mb * 2**20, problem.clients * row))
    resident -= resident % max(row, 1)
    samples = data.dataset.train.inputs.size * input_dtype(data.dataset, problem.dtype).itemsize
    fits = samples <= config.hosts.data_memory_mb * 2**20 and not config.data.augment
    samples = (samples if fits else 0) + data.dataset.train.targets.nbytes
    broadcast = sum(vector.nbytes for vector in down.values())
    peak = _peak(problem, data, tasks, down)
    return MemoryEstimate(samples, resident, broadcast, max(0, peak - samples - broadcast))


def _largest(problem: Problem, data: Data) -> list[ClientTask]:
    """Return the tasks of a stack of the largest clients."""
    count = min(max(problem.stack, 1), problem.cohort_size)
    clients = np.argsort(-data.partitions[0].sizes, kind="stable")[:count].tolist()
    blocks = sorted(range(problem.num_blocks), key=lambda k: -problem.layout.blocks[k].size)
    blockwise = problem.algorithm.blockwise
    return [ClientTask(client, blocks[k % len(blocks)] if blockwise else None) for k, client in enumerate(clients)]


def _broadcast(problem: Problem, phases: int) -> Mapping[str, np.ndarray]:
    algorithm = problem.algorithm
    server = algorithm.server_init(problem.flat_model().vector, phases)
    rnd = Round(index=0, clients=problem.clients, lr=algorithm.lr_at(0), steps=float(_STEPS), data_phase=0)
    return {name: vector.numpy() for name, vector in algorithm.broadcast(server, rnd)._asdict().items()}


def _peak(problem: Problem, data: Data, tasks: list[ClientTask], down: Mapping[str, np.ndarray]) -> int:
    """Return the peak memory of a host's tensors while it trains a stack and evaluates a piece of the test data."""
    problem = _shortened(problem)
    _ = problem.module(), problem.trained, problem.stack, problem.wire  # always on the CPU: do not count them
    orders = RoundOrders(0, problem.algorithm.lr_at(0), cohort=problem.cohort_size, reduce=True)
    piece = Piece(0, 0, min(problem.config.evaluation.batch_size, len(data.test_rows[0])))
    with tempfile.TemporaryDirectory() as folder, one_thread(), chunks_of_an_accelerator(), _Meter() as meter:
        host = ClientHost(problem, data, folder, CPU)
        gc.collect()  # copying a module leaves reference cycles, which would be counted
        meter.peak = meter.live
        host.train(tasks, down, orders)
        host.hand_over()
        host.evaluate([piece], [down["x"]])
    return int(meter.peak)


def _shortened(problem: Problem) -> Problem:
    """Return the same problem with few local steps."""
    local = problem.config.local.model_copy(update={"steps": _STEPS})
    config: Config = problem.config.model_copy(update={"local": local})
    return Problem(**{**problem.__getstate__(), "config": config})  # type: ignore[arg-type]
