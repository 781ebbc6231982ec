"""The hosts in this process: one, on which everything happens in turn."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from raybcgd.client.host import ClientHost, HostLoad, Job, Orders, Outcome
from raybcgd.problem import Data, Problem
from raybcgd.server.evaluate import Piece, Score
from raybcgd.server.round import PoolNews


class LocalPool:
    """A pool of one host in this process. Single-threaded, as hosts are, so that the bits are theirs.

    It is on the CPU unless `hosts.device = "gpu"`.
    """

    def __init__(self, problem: Problem, data: Data, state_address: str) -> None:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        on_gpu = problem.config.hosts.device == "gpu"
        device = torch.accelerator.current_accelerator() if on_gpu else None
        self._host = ClientHost(problem, data, state_address, device or torch.device("cpu"))
        self._chunk = problem.stack or 1
        self._load = HostLoad()
        self._queued = 0

    def train(
        self, jobs: Sequence[Job], down: Mapping[str, np.ndarray], orders: Orders, deadline: float | None
    ) -> Iterator[Outcome]:
        """Do the jobs one stack after another, until the deadline."""
        started = time.monotonic()
        self._queued = max(0, len(jobs) - self._chunk)
        for start in range(0, len(jobs), self._chunk):
            if deadline is not None and time.monotonic() - started > deadline:
                return
            outcomes = self._host.train(jobs[start : start + self._chunk], down, orders)
            self._load = outcomes[-1].load
            yield from outcomes

    def evaluate(self, models: Sequence[np.ndarray], parts: Sequence[Piece]) -> Callable[[], list[Score]]:
        """Judge models, now."""
        scores = [self._host.evaluate(part, models[part.model]) for part in parts]
        return lambda: scores

    def news(self) -> PoolNews:
        """One host, to which nothing happens."""
        load = self._load
        return PoolNews(hosts=1, queued=self._queued, state_bytes=load.state_bytes, device_bytes=load.device_bytes)

    def close(self) -> None:
        """Give torch its threads back."""
        torch.set_num_threads(self._threads)
