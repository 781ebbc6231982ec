"""What a run demands of its hosts: the memory of each, and how many of them it can use."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from raybcgd.data.normalise import input_dtype, normalise
from raybcgd.engine.settings import PROCESS_MB
from raybcgd.problem import Data, Problem
from raybcgd.server.budget import expected_rounds

START_SECONDS = 3.0
"""CPU time to start a host, mostly to import torch."""
_STEP_SECONDS = 3e-4
"""Overhead of a local step, in addition to its arithmetic."""
_OPERATIONS_PER_SECOND = 5e9
"""Floating-point operations per second on one CPU. For a GPU, this overestimates the time, so more hosts start."""
_VECTORS = 8
"""Vectors of the model's size that training a client needs: model, gradient, states, update and sums."""


class Demand(NamedTuple):
    """Estimates, made before a run."""

    seconds: float
    """Time of the whole run's local training on one CPU. 0 if the config sets the number of hosts."""
    cpu_bytes: int
    """Memory of a host on a CPU."""
    gpu_bytes: int
    """Memory of a host on a GPU, without the GPU's own memory."""

    @property
    def hosts(self) -> int:
        """The n that minimises the time of the run, which is about seconds / n + START_SECONDS * n with n hosts."""
        return max(1, math.ceil(math.sqrt(self.seconds / START_SECONDS)))


def demand(problem: Problem, data: Data) -> Demand:
    """Estimate what a run demands of its hosts."""
    config = problem.config
    rows = max(1, min(problem.stack, problem.cohort_size))
    states = min(config.hosts.state_memory_mb * 2**20, problem.clients * problem.state_layout.row_bytes)
    vectors = _VECTORS * problem.layout.size * problem.dtype.itemsize * rows
    samples = data.dataset.train.inputs.size * input_dtype(data.dataset, problem.dtype).itemsize
    if samples > config.hosts.data_memory_mb * 2**20 or config.data.augment:
        samples = 0  # prepared again in each round, only for the clients that are training
    common = int(states + vectors)
    hosts = config.hosts
    open_count = (hosts.count, hosts.max_count, hosts.clients_per_host) == (None, None, None)
    return Demand(
        _training_seconds(problem, data, rows) if open_count else 0.0,
        PROCESS_MB["cpu"] * 2**20 + common + samples,
        PROCESS_MB["gpu"] * 2**20 + common,
    )


def _training_seconds(problem: Problem, data: Data, rows: int) -> float:
    local = problem.config.local
    sizes, counts = np.unique(np.concatenate([part.sizes for part in data.partitions]), return_counts=True)
    batch = sizes if local.batch_size == "full" else np.minimum(sizes, local.batch_size)
    steps = np.array([local.num_steps(int(size)) for size in sizes])
    # The backward pass takes twice as long as the forward pass.
    per_step = _STEP_SECONDS / rows + 3 * _operations_per_sample(problem, data) * batch / _OPERATIONS_PER_SECOND
    per_client = float(np.average(steps * per_step, weights=counts))
    return expected_rounds(problem) * problem.cohort_size * per_client


def _operations_per_sample(problem: Problem, data: Data) -> float:
    """Return the floating-point operations of a forward pass."""
    module = problem.module().to(problem.dtype).eval()
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad(), torch.random.fork_rng(devices=[]):
            module(normalise(torch.from_numpy(data.dataset.train.inputs[:1]), data.dataset, problem.dtype))
    except Exception:  # custom code may use operations that the counter does not support
        return 2.0 * problem.layout.size
    return float(counter.get_total_flops())
