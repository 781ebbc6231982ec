"""Hosts that only sleep or only upload: the cost of the coordinator and of aggregation, on one machine.

The pool, the scheduling, the calls and the reduction are raybcgd's. Only the hosts are simulated, because hundreds
of processes, or training ViT-Base, do not fit on the machine.
"""

import asyncio
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import psutil
import ray
import torch
from torch import nn

from benchmarks.scaling import Curve, random_images, settings
from raybcgd.aggregation.reducer import Reducer
from raybcgd.config import make_config
from raybcgd.engine.ray.host_actor import HostPlace, received, replied
from raybcgd.engine.ray.hosts import HostGroup
from raybcgd.engine.ray.pool import RayPool
from raybcgd.messages import FRESH, CallResult, ClientTask, HostLoad, Outcome, Partial, SumKey
from raybcgd.plan.history import History
from raybcgd.problem import Data, Problem, prepare
from raybcgd.server.aggregation import Aggregator
from raybcgd.server.loop import initial_state
from raybcgd.server.pool import RoundWork
from raybcgd.server.round import plan_round, run_round


def outcomes(tasks: Sequence[ClientTask], seconds: float) -> list[Outcome]:
    """Return a successful outcome per task."""
    return [Outcome(task.client, None, FRESH, seconds, 0.0) for task in tasks]


@ray.remote(num_cpus=0, max_concurrency=2000)
class Sleepers:
    """All simulated hosts in one process. A call sleeps for each task, one call at a time per host."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._kept = seconds, dict[int, list[int]]()
        self._locks: dict[int, asyncio.Lock] = {}

    async def place(self) -> HostPlace:
        """Return where the host runs."""
        return HostPlace("node", (), True)

    async def train(self, host: int, shared: Any, call: bytes) -> Any:
        """Sleep, and return what a host that trained the tasks would return."""
        (down, _), (tasks, hand_over, _) = received(shared), pickle.loads(call)
        async with self._locks.setdefault(host, asyncio.Lock()):
            await asyncio.sleep(self._seconds * len(tasks))
            kept = self._kept.setdefault(host, [])
            kept.extend(task.client for task in tasks)
            partial = None
            if hand_over:
                partial = Partial(tuple(kept), {SumKey("delta", -1): {0: down["x"].astype(np.float64)}})
                kept.clear()
            return replied(CallResult(outcomes(tasks, self._seconds), HostLoad(), partial), parts=1)


class _Method:
    """A method of an actor, called with the number of the host first."""

    def __init__(self, method: Any, *first: Any) -> None:
        self._method, self._first = method, first

    def remote(self, *arguments: Any) -> Any:
        return self._method.remote(*self._first, *arguments)


class SleepingHost:
    """Stands in for the actor of one host."""

    def __init__(self, sleepers: Any, number: int) -> None:
        self.place, self.train = _Method(sleepers.place), _Method(sleepers.train, number)


class SleepingHosts:
    """Stands in for the actor class: starts hosts that share one process."""

    def __init__(self, sleepers: Any) -> None:
        self._sleepers, self._count = sleepers, 0

    def options(self, **_: Any) -> "SleepingHosts":
        """Ignore resources."""
        return self

    def remote(self, *_: Any) -> SleepingHost:
        """Start a host."""
        self._count += 1
        return SleepingHost(self._sleepers, self._count)


def coordinator(quick: bool, counts: Sequence[int] | None = None) -> Curve:
    """Measure the CPU time of the coordinator's process per round of 1 000 clients, for several numbers of hosts."""
    points, cohort = [], 1000
    dataset = random_images(2 * cohort, 1, 28, 28)
    for count in counts or ((16, 64) if quick else (16, 32, 64, 128, 256, 512)):
        values = {**settings("fedavg", cohort, cohort, 1), "rounds": 100}
        values["hosts"] = {"count": count, "num_cpus": 0.001}
        problem, data = prepare(make_config(values), dataset=dataset)
        sleepers = Sleepers.remote(0.02)  # type: ignore[attr-defined]
        with tempfile.TemporaryDirectory() as folder:
            hosts = HostGroup(problem, None, f"{folder}/states", SleepingHosts(sleepers))
            while hosts.starting():
                for number in hosts.starting().values():
                    hosts.finish_start(number)
            pool = RayPool(problem, None, [data.partitions[0].sizes], folder, hosts)
            state, seconds = initial_state(problem, data), []
            for _ in range(4 if quick else 8):
                began = time.process_time()
                state, _ = run_round(problem, data, pool, state)
                seconds.append(time.process_time() - began)
        ray.kill(sleepers)
        points.append({"x": count, "seconds": seconds[2:]})
    title = "1 000 clients per round, on hosts that only sleep"
    return Curve(title, "hosts", points, "CPU time of the coordinator per round")


@ray.remote
class Uploader:
    """A host that does not train: every client uploads the same random block."""

    def __init__(self, problem: Problem, data: Data, state_address: str, pulse: object) -> None:
        torch.set_num_threads(1)
        self._problem, self._reducer = problem, None
        sizes = [block.size for block in problem.layout.blocks]
        self._upload = torch.randn(max(sizes) + problem.layout.shared.size) * 1e-3

    def place(self) -> HostPlace:
        """Return where the host runs."""
        return HostPlace(ray.get_runtime_context().get_node_id(), (), True)

    def pid(self) -> int:
        """Return the process ID."""
        return os.getpid()

    def train(self, shared: Any, call: bytes) -> CallResult:
        """Add up the clients' uploads."""
        (_, orders), (tasks, *_) = received(shared), pickle.loads(call)
        began, problem = time.perf_counter(), self._problem
        if self._reducer is None or self._orders != orders:
            self._orders, broadcast = orders, problem.algorithm.Down(x=torch.zeros(1).expand(problem.layout.size))
            self._reducer = Reducer(problem, problem.wire, broadcast, orders, torch.device("cpu"))
        for task in tasks:
            size = sum(s.stop - s.start for s in problem.wire.coordinates(task.block))
            terms = self._reducer.terms(task.block, problem.algorithm.upload_type(self._upload[:size]), 1)
            self._reducer.add(task.block, terms, [task.client], [1.0])
        return CallResult(outcomes(tasks, (time.perf_counter() - began) / max(1, len(tasks))), HostLoad())

    def begin_hand_over(self) -> tuple[tuple[int, ...], tuple[SumKey, ...]]:
        """Return the clients and the pieces."""
        assert self._reducer is not None
        return self._reducer.take_clients(), self._reducer.keys

    def take_piece(self, key: SumKey) -> Mapping[int, np.ndarray]:
        """Return a piece, and free it."""
        assert self._reducer is not None
        return self._reducer.take(key)


class Cut(nn.Module):
    """A vector of parameters; nothing is ever computed with it."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.padding = nn.Parameter(torch.zeros(parameters))
        self.head = nn.Linear(4, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.head(inputs.flatten(1))


def memory_bytes(pids: Sequence[int]) -> int:
    """Return the memory of some processes. Shared pages are divided among the processes that map them."""
    return sum(psutil.Process(pid).memory_full_info().pss for pid in pids)


class PeakMemory:
    """The peak memory of some processes during a `with` block."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids, self._done = pids, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.before, self.peak = 0, 0

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.peak = max(self.peak, memory_bytes(self._pids))

    def __enter__(self) -> "PeakMemory":
        self.before = memory_bytes(self._pids)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def large_model(quick: bool) -> dict[str, Any]:
    """Aggregate a round of FedBCGD: a model as large as ViT-Base, six blocks, 48 clients, 4 hosts."""
    size, cohort, hosts = (9_000_000 if quick else 85_797_120), 48, 4
    values = {**settings("fedbcgd", cohort, cohort, 6), "rounds": 10}
    values |= {"hosts": {"count": hosts, "num_cpus": 0.1, "aggregation": "hosts"}, "local": {"stack": 0}}
    values["blocks"] = {"division": "equal", "count": 6, "shared": 50}
    problem, data = prepare(make_config(values), module=Cut(size), dataset=random_images(2 * cohort, 1, 2, 2))
    with tempfile.TemporaryDirectory() as folder:
        group = HostGroup(problem, ray.put(data), f"{folder}/states", Uploader)
        while group.starting():
            for number in group.starting().values():
                group.finish_start(number)
        pool = RayPool(problem, None, [data.partitions[0].sizes], folder, group)
        pids = [os.getpid(), *ray.get([host.actor.pid.remote() for host in group.all.values()])]
        pids += [p.pid for p in psutil.process_iter(["name"]) if p.info["name"] in ("raylet", "plasma_store")]
        seconds = [aggregate(problem, data, pool, index) for index in range(2 if quick else 5)]
        with PeakMemory(pids) as memory:  # slows down the processes that it watches
            aggregate(problem, data, pool, len(seconds))
        group.stop()
    upload, model = 4 * max(block.size for block in problem.layout.blocks), 4 * problem.layout.size
    return {
        "seconds": seconds[1:],
        "copy_seconds": copy_seconds(upload, cohort),
        "memory_bytes": memory.peak - memory.before,
        "memory_limit_bytes": 4 * model + hosts * upload,
        "model_bytes": model,
    }


class Everything:
    """Passes all results to an aggregator."""

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator

    def meanwhile(self) -> None:
        """Do nothing while the hosts train."""

    def receive(self, outcomes: Sequence[Outcome], partial: Partial | None = None) -> None:
        """Merge a partial sum."""
        if partial is not None:
            self._aggregator.merge(partial)


def aggregate(problem: Problem, data: Data, pool: RayPool, index: int) -> float:
    """Run the training calls of a round and aggregate. Return the seconds, without planning and broadcast."""
    plan = plan_round(problem, data, History(), index)
    x = np.zeros(problem.layout.size, dtype=np.float32)
    down = problem.algorithm.Down(x=torch.from_numpy(x))
    aggregator = Aggregator(problem, plan.wire, down, plan.orders, plan.expected)
    tasks = [ClientTask(*item.member) for item in plan.expected]
    work = RoundWork(tasks, {"x": torch.zeros(1)}, plan.orders, None)
    began = time.perf_counter()
    pool.train(work, Everything(aggregator))
    aggregator.result()
    return time.perf_counter() - began


def copy_seconds(size: int, count: int) -> float:
    """Return the time to copy that many uploads in memory, one after another, each to a new place."""
    source = np.random.default_rng(0).random(size // 8).view(np.float32)
    began = time.perf_counter()
    for _ in range(count):
        source.copy()
    return time.perf_counter() - began
