"""[Ray] A client host as an actor, on its share of a device."""

import gc
import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import ray

from raybcgd.client.device import CPU, accelerator, deterministic, is_fatal, limit_share, why_none
from raybcgd.client.host import ClientHost, one_thread
from raybcgd.engine.ray.pulse import PulseAddress, beat
from raybcgd.errors import named_line
from raybcgd.messages import CallResult, ClientTask, HostLost, Piece, RoundOrders, Score, SumKey
from raybcgd.problem import Data, Problem
from raybcgd.record.states import SegmentFolder

log = logging.getLogger(__name__)

Shared = tuple[Mapping[str, np.ndarray], RoundOrders]
"""What all calls of a round share: the broadcast and the orders."""

_INLINE_BYTES = 2**16
"""A broadcast up to this size is sent with every call. Ray sends objects up to 100 kB without its object store."""
_OUTCOMES_BYTES = 2**10
"""Room for the numbers that come with a partial sum."""
_MAX_PARTS = 8
"""Maximum number of parts of a reply. Larger replies go through the object store, which copies less."""


def share(broadcast: Mapping[str, np.ndarray], orders: RoundOrders) -> Any:
    """Return the argument `shared` of `HostActor.train`: bytes if it is small, otherwise an object reference."""
    if sum(vector.nbytes for vector in broadcast.values()) > _INLINE_BYTES:
        return ray.put((dict(broadcast), orders))
    return pickle.dumps((dict(broadcast), orders), protocol=5)


def received(shared: Shared | bytes) -> Shared:
    """Return what `share` packed."""
    found: Shared = pickle.loads(shared) if isinstance(shared, bytes) else shared
    return found


def submit(
    actor: Any, shared: Any, tasks: Sequence[ClientTask], hand_over: bool, alone: bool = False, parts: int = 1
) -> tuple[Any, list[Any]]:
    """Submit a training call. Return references to the first part of its reply and to the others.

    The arguments are sent as bytes. Ray's own serialisation takes three times as long.
    """
    call = pickle.dumps((tasks, hand_over, alone))
    if parts == 1:
        return actor.train.remote(shared, call), []
    first, *others = actor.train.options(num_returns=parts).remote(shared, call, parts)
    return first, others


def reply_parts(sums_bytes: int) -> int:
    """Return the number of parts of a reply: enough for Ray to send each without its object store. 1 if too many."""
    parts = -(-(sums_bytes + _OUTCOMES_BYTES) // _INLINE_BYTES)
    return parts if parts <= _MAX_PARTS else 1


def replied(result: CallResult, parts: int) -> Any:
    """Return the reply to a training call: its parts as bytes, or the whole result if it is too large for them."""
    sums = {} if result.partial is None else result.partial.sums
    size = sum(array.nbytes for levels in sums.values() for array in levels.values())
    payloads = any(outcome.payload is not None for outcome in result.outcomes)
    if payloads or size > parts * _INLINE_BYTES:
        return result if parts == 1 else (result, *[b""] * (parts - 1))
    content = memoryview(pickle.dumps(result, protocol=5))
    step = -(-len(content) // parts)
    cut = [bytes(content[start : start + step]) for start in range(0, parts * step, step)]
    return cut[0] if parts == 1 else tuple(cut)


def opened(reply: CallResult | bytes, *others: bytes) -> CallResult:
    """Return the result that `replied` packed."""
    result: CallResult = pickle.loads(b"".join((reply, *others))) if isinstance(reply, bytes) else reply
    return result


def freeze_heap() -> None:
    """Exempt all current objects from garbage collection, which otherwise takes a tenth of the time of short rounds."""
    gc.collect()
    gc.freeze()


class HostPlace(NamedTuple):
    """Where a host runs."""

    node: str
    gpus: tuple[str, ...]
    """The GPUs that the host uses, or has a share of."""
    sees_states: bool
    """Whether the host can reach the folder of client states that the coordinator created."""
    no_device: str | None = None
    """Why the host cannot use the GPU that it was granted."""


@contextmanager
def _ending_if_broken() -> Iterator[None]:
    """Exit this process if its device is broken, so that the pool replaces it like any lost host."""
    try:
        yield
    except Exception as error:
        if is_fatal(error):
            log.error("the accelerator failed; this host exits: %s", named_line(error))
            ray.actor.exit_actor()  # type: ignore[no-untyped-call]
        raise


@ray.remote(max_restarts=0, max_task_retries=0)
class HostActor:
    """A client host. Ray does not restart it: the pool starts a new one and retries the lost tasks."""

    def __init__(
        self, problem: Problem, data: Data, state_address: str, pulse: tuple[PulseAddress, int] | None = None
    ) -> None:
        self._settings = ExitStack()  # never closed: the settings hold for the life of the process
        self._settings.enter_context(one_thread())
        context = ray.get_runtime_context()
        self._name = context.get_actor_name() or "host"
        self._last_call: tuple[int, list[int]] | None = None
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
            strict = hosts.determinism == "strict"
            self._settings.enter_context(deterministic(device or CPU, strict, hosts.allow_tf32))
            self._host = ClientHost(problem, data, state_address, device or CPU, interruptible=False)
        freeze_heap()
        if pulse is not None:
            beat(*pulse)

    def __repr__(self) -> str:
        last = self._last_call
        done = "" if last is None else f", round {last[0] + 1}, clients {', '.join(map(str, last[1]))}"
        return f"{self._name} on {f'GPU {gpus}' if (gpus := ', '.join(self._place.gpus)) else 'the CPU'}{done}"

    def place(self) -> HostPlace:
        """Return where the host runs. The reply also shows that the host is up."""
        return self._place

    def train(self, shared: Shared | bytes, call: bytes, parts: int = 1) -> Any:
        """Run tasks; see `ClientHost.train` and `submit`. `replied` makes the reply."""
        (down, orders), (tasks, *how) = received(shared), pickle.loads(call)
        self._last_call = orders.round_index, [task.client for task in tasks]
        return replied(self._host.train(tasks, down, orders, *how), parts)

    def begin_hand_over(self) -> tuple[tuple[int, ...], tuple[SumKey, ...]]:
        """Wait until all new states are stored. Return the clients of the partial sum, and the keys of its pieces."""
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
        """Evaluate models on pieces of the test data or of clients' data, or return why the host cannot continue."""
        try:
            return self._host.evaluate(pieces, models)
        except Exception as error:
            if is_fatal(error):
                return HostLost((), named_line(error))
            raise
