"""[Ray] A client host as an actor, pinned to its share of a device by Ray."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import ray
import torch

from raybcgd.client.host import ClientHost
from raybcgd.messages import ClientTask, Outcome, Piece, RoundOrders, Score
from raybcgd.problem import Data, Problem
from raybcgd.record.states import StateFolder

log = logging.getLogger(__name__)


class HostPlace(NamedTuple):
    """Where a host runs."""

    node: str
    pid: int
    device: str
    gpus: tuple[str, ...]
    """The GPUs that Ray has given it a share of."""
    sees_states: bool
    """Whether the folder of the clients' states, which the coordinator has made, is there."""


def host_device(on_accelerator: bool) -> torch.device:
    """The device that Ray has given this process; a CPU where the GPU is only a logical one."""
    if on_accelerator and torch.accelerator.is_available():
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    return torch.device("cpu")


@ray.remote(max_restarts=0, max_task_retries=0)
class HostActor:
    """A client host. It dies with its process: the pool starts another one and has lost work done again."""

    def __init__(self, problem: Problem, data: Data, state_address: str) -> None:
        torch.set_num_threads(1)
        self._gpus = tuple(ray.get_runtime_context().get_accelerator_ids().get("GPU", ()))
        self._device = host_device(bool(self._gpus))
        self._sees_states = StateFolder(state_address).seen
        self._host = ClientHost(problem, data, state_address, self._device)

    def place(self) -> HostPlace:
        """Answer that the host is up, and where."""
        node = ray.get_runtime_context().get_node_id()
        return HostPlace(node, os.getpid(), str(self._device), self._gpus, self._sees_states)

    def train(self, tasks: Sequence[ClientTask], down: Mapping[str, np.ndarray], orders: RoundOrders) -> list[Outcome]:
        """Do tasks; see `ClientHost.train`."""
        return self._host.train(tasks, down, orders)

    def evaluate(self, parts: Sequence[Piece], models: Sequence[np.ndarray]) -> list[Score]:
        """Judge models on pieces of the test data."""
        return [self._host.evaluate(part, models[part.model]) for part in parts]
