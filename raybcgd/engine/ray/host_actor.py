"""[Ray] The client host as an actor, on its share of a device."""

import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import ray
import torch

from raybcgd.client.device import CPU, accelerator, deterministic, is_fatal, limit_share, why_none
from raybcgd.client.host import ClientHost
from raybcgd.errors import named_line
from raybcgd.messages import CallResult, ClientTask, HostLost, Piece, RoundOrders, Score, SumKey
from raybcgd.problem import Data, Problem
from raybcgd.record.states import SegmentFolder

log = logging.getLogger(__name__)


def packed(tasks: Sequence[ClientTask], hand_over: bool, alone: bool = False) -> bytes:
    """Return the arguments of a training call as bytes. Ray takes three times as long to serialise them."""
    return pickle.dumps((tasks, hand_over, alone))


class HostPlace(NamedTuple):
    """Where a host runs."""

    node: str
    gpus: tuple[str, ...]
    """The GPUs that the host has a share of."""
    sees_states: bool
    """Whether the host can reach the folder of client states that the coordinator created."""
    no_device: str | None = None
    """Why the host cannot use the GPU that it was granted."""


@contextmanager
def _ending_if_broken() -> Iterator[None]:
    """End this process if its device is broken, so that the pool replaces it like any lost host."""
    try:
        yield
    except Exception as error:
        if is_fatal(error):
            log.error("the accelerator failed, so this host ends: %s", named_line(error))
            ray.actor.exit_actor()  # type: ignore[no-untyped-call]
        raise


@ray.remote(max_restarts=0, max_task_retries=0)
class HostActor:
    """A client host. Ray does not restart it: the pool starts a new one and repeats the lost tasks."""

    def __init__(self, problem: Problem, data: Data, state_address: str) -> None:
        torch.set_num_threads(1)
        context = ray.get_runtime_context()
        gpus = tuple(context.get_accelerator_ids().get("GPU", ()))
        device = accelerator() if gpus else CPU
        logical = problem.config.hosts.logical_gpus
        self._place = HostPlace(
            context.get_node_id(),
            gpus,
            SegmentFolder(state_address, problem.state_layout).seen,
            why_none() if device is None and not logical else None,
        )
        if self._place.no_device is None:
            hosts = problem.config.hosts
            limit_share(device or CPU, context.get_assigned_resources().get("GPU", 0.0))  # type: ignore[no-untyped-call]
            self._settings = deterministic(device or CPU, hosts.determinism == "strict", hosts.allow_tf32)
            self._settings.__enter__()  # for the life of the process
            self._host = ClientHost(problem, data, state_address, device or CPU, interruptible=False)

    def place(self) -> HostPlace:
        """Return where the host runs. The reply also shows that the host is up."""
        return self._place

    def train(self, shared: tuple[Mapping[str, np.ndarray], RoundOrders], call: bytes) -> CallResult:
        """Run tasks; see `ClientHost.train`. `shared` is the same for all calls of a round, `call` is from `packed`."""
        (down, orders), (tasks, *how) = shared, pickle.loads(call)
        return self._host.train(tasks, down, orders, *how)

    def begin_hand_over(self) -> tuple[tuple[int, ...], tuple[SumKey, ...]]:
        """Wait until all new states are stored. Return the clients and the pieces of the partial sum."""
        with _ending_if_broken():
            return self._host.begin_hand_over()

    def take_piece(self, key: SumKey) -> Mapping[int, np.ndarray]:
        """Return a piece of the partial sum, and free it."""
        with _ending_if_broken():
            return self._host.take_piece(key)

    def discard_sums(self) -> None:
        """Forget what is left of the partial sum."""
        self._host.discard_sums()

    def evaluate(self, pieces: Sequence[Piece], models: Sequence[np.ndarray]) -> list[Score] | HostLost:
        """Evaluate models on pieces of the test data, or return why the host cannot continue."""
        try:
            return self._host.evaluate(pieces, models)
        except Exception as error:
            if is_fatal(error):
                return HostLost((), named_line(error))
            raise
