"""Run experiments in this process and return their internal state."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raybcgd.client.host import ClientHost
from raybcgd.config import Config, make_config
from raybcgd.data.dataset import Dataset
from raybcgd.data.partition import Partition
from raybcgd.data.settings import DataConfig
from raybcgd.data.sources import load
from raybcgd.engine.local import LocalPool
from raybcgd.messages import ClientTask
from raybcgd.problem import Data, Problem, prepare
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.states import SegmentFolder
from raybcgd.server.loop import initial_state
from raybcgd.server.round import plan_round, run_round
from raybcgd.wire.upload import Traffic

SMALL: dict[str, Any] = {
    "engine": "local",
    "data": {"partition": {"clients": 8, "rho": 0.3, "samples_per_client": 40}},
    "model": {"options": {"hidden": [6, 5]}},
    "blocks": {"count": 2},
    "local": {"epochs": 2, "batch_size": 16},
    "cohort": {"clients_per_round": 4},
}
"""A small perceptron on a subset of the digits."""


@cache
def digits() -> Dataset:
    """Load the digits once."""
    return load(DataConfig())


def nested(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of nested tables with some settings replaced; None removes a setting."""
    result = dict(base)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            result[key] = nested(base[key], value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = value
    return result


@dataclass
class Played:
    """A finished run."""

    problem: Problem
    data: Data
    start: Tensor
    """x before round 0."""
    xs: list[Tensor]
    """x after each round."""
    server: Any
    """The final server state."""
    clients: list[dict[str, np.ndarray]]
    """Every client's committed state."""
    rounds: list[RoundRecord]

    @property
    def uploads(self) -> list[Traffic]:
        """The upload traffic of each round."""
        return [Traffic(r.traffic.upload_floats, r.traffic.upload_bytes, r.blocks.upload_floats) for r in self.rounds]

    @property
    def x(self) -> Tensor:
        return self.xs[-1]

    def kept(self, name: str) -> np.ndarray:
        """Return one field of every client state, one row per client."""
        return np.stack([state[name] for state in self.clients])


class Lab:
    """Prepares and runs experiments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def config(self, changes: dict[str, Any]) -> Config:
        """Return `SMALL` with some settings replaced."""
        return make_config(nested(SMALL, changes))

    def prepare(
        self,
        config: Config,
        module: nn.Module | None = None,
        dataset: Dataset | None = None,
        owners: Partition | None = None,
    ) -> tuple[Problem, Data]:
        """Call `raybcgd.problem.prepare`, and replace the partition if `owners` is not None."""
        problem, data = prepare(config, module, dataset or digits())
        if owners is not None and not config.algorithm.pooled:
            data = replace(data, partitions=(owners,))
            problem = replace(problem, clients=len(owners), largest_client=int(owners.sizes.max()))
        return problem, data

    def play(
        self,
        changes: dict[str, Any],
        module: nn.Module | None = None,
        dataset: Dataset | None = None,
        owners: Partition | None = None,
        stop: Callable[[Tensor], bool] | None = None,
    ) -> Played:
        """Run an experiment to its end, or until `stop(x)` is true."""
        problem, data = self.prepare(self.config(changes), module, dataset, owners)
        self._count += 1
        address = str(self._folder / f"states-{self._count}")
        state = initial_state(problem, data)
        played = Played(problem, data, state.server.x, [], state.server, [], [])
        pool = LocalPool(problem, data, address)
        try:
            for _ in range(problem.config.rounds):
                state, record = run_round(problem, data, pool, state)
                played.server = state.server
                played.rounds.append(record)
                played.xs.append(state.server.x)
                if stop is not None and stop(state.server.x):
                    break
        finally:
            pool.close()
        layout = problem.state_layout
        rows = np.tile(problem.fresh_row(), (problem.clients, 1))
        if problem.keeps_state:
            trained = state.ledger.clients.tolist()
            rows[trained] = SegmentFolder(address, layout).read([(client, state.ledger[client]) for client in trained])
        views = layout.views(rows)
        played.clients += [{name: view[client] for name, view in views.items()} for client in range(problem.clients)]
        return played

    def upload(self, changes: dict[str, Any], client: int, block: int | None, **objects: Any) -> tuple[Problem, Any]:
        """Return the payload that one client sends in round 0."""
        problem, data = self.prepare(self.config(changes), **objects)
        state = initial_state(problem, data)
        plan = plan_round(problem, data, state.history, 0)
        down = problem.algorithm.broadcast(state.server, plan.rnd)
        self._count += 1
        host = ClientHost(problem, data, str(self._folder / f"states-{self._count}"), torch.device("cpu"))
        arrays = {name: vector.numpy() for name, vector in down._asdict().items()}
        (outcome,) = host.train([ClientTask(client, block)], arrays, plan.orders).outcomes
        assert outcome.error is None, outcome.error
        return problem, outcome.payload


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)
