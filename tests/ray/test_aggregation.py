"""Uploads added up on hosts, per node and on the coordinator: always the same bits, also if hosts are lost."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from torch import Tensor

from raybcgd.config import Config
from raybcgd.engine.local import LocalPool
from raybcgd.engine.ray import collection, pool
from raybcgd.engine.ray.host_actor import opened
from raybcgd.engine.ray.pool import RayPool
from raybcgd.messages import Outcome, Partial
from raybcgd.problem import Data, Problem, prepare
from raybcgd.record.rounds import RoundRecord
from raybcgd.server.loop import initial_state
from raybcgd.server.pool import Pool
from raybcgd.server.round import run_round
from tests.conftest import ONE_BY_ONE, small

pytestmark = pytest.mark.ray
ROUNDS = 3


def config(hosts: int, aggregation: str = "hosts", **tables: Any) -> Config:
    local = {"local": ONE_BY_ONE, **tables}
    return small(rounds=ROUNDS, hosts={"count": hosts, "aggregation": aggregation}, **local)


def ray_pool(problem: Problem, data: Data, folder: Path) -> RayPool:
    """Return a pool whose hosts are all up, so that all of them take part in the first round."""
    made = RayPool(problem, ray.put(data), [data.partitions[0].sizes], str(folder / "states"))
    while starting := made.hosts.starting():
        for ref in ray.wait(list(starting))[0]:
            made.hosts.finish_start(starting[ref])
    return made


def play(config: Config, folder: Path, on_ray: bool = True) -> tuple[Tensor, list[RoundRecord], Any]:
    """Run the rounds with the coordinator in this process. Return the model, the records and the pool."""
    problem, data = prepare(config)
    made: Pool = ray_pool(problem, data, folder) if on_ray else LocalPool(problem, data, str(folder / "states"))
    state, records = initial_state(problem, data), []
    for _ in range(ROUNDS):
        state, record = run_round(problem, data, made, state)
        records.append(record)
    made.close()
    return state.server.x, records, made


def traffic(records: Sequence[RoundRecord]) -> list[Any]:
    return [(record.traffic, record.blocks) for record in records]


@pytest.mark.parametrize(("codec", "weighting"), [("raw", "uniform"), ("topk", "samples")])
def test_hosts_nodes_and_modes_give_the_same_bits_and_bytes(
    three_nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, weighting: str
) -> None:
    tables = {"wire": {"codec": codec}, "cohort": {"weighting": weighting}, "local": {"stack": "auto"}}
    expected, records, _ = play(config(1, **tables), tmp_path / "local", on_ray=False)
    for name, hosts, aggregation, piecewise_bytes in (
        ("coordinator", 2, "coordinator", 2**26),
        ("pieces", 4, "hosts", 0),
    ):
        monkeypatch.setattr(pool, "PIECEWISE_BYTES", piecewise_bytes)
        x, found, _ = play(config(hosts, aggregation, **tables), tmp_path / name)
        assert torch.equal(x, expected), name
        assert traffic(found) == traffic(records), name


def test_a_round_that_loses_a_host_with_its_sum_repeats_only_the_clients_of_that_host(
    three_nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host dies after its last training call and before its sum arrived."""
    expected, _, _ = play(config(1), tmp_path / "local", on_ray=False)
    monkeypatch.setattr(pool, "PIECEWISE_BYTES", 0)
    lost: list[int] = []
    collect = RayPool._collect

    def kill_first(self: RayPool, training: Any) -> None:
        if not lost:
            number = next(number for number, host in self.hosts.all.items() if host.kept)
            lost.append(len(self.hosts.all[number].kept))
            ray.kill(self.hosts.all[number].actor)
        collect(self, training)

    monkeypatch.setattr(RayPool, "_collect", kill_first)
    x, records, _ = play(config(3), tmp_path / "ray")
    assert torch.equal(x, expected)
    assert records[0].hosts.restarted == 1
    assert records[0].hosts.retried_tasks == lost[0] > 0


def test_a_host_that_dies_while_its_sum_is_collected_does_not_spoil_the_round(
    three_nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _, _ = play(config(1), tmp_path / "local", on_ray=False)
    monkeypatch.setattr(pool, "PIECEWISE_BYTES", 0)
    killed: list[bool] = []
    collect_node = collection.collect_node

    def interrupted(node: str, actors: Sequence[Any], combine: bool) -> Iterator[Partial]:
        if not killed and len(actors) > 1:  # the other host of the node must forget its sum
            killed.append(True)
            ray.get(actors[-1].begin_hand_over.remote())
            ray.kill(actors[-1])
        yield from collect_node(node, actors, combine)

    monkeypatch.setattr(pool, "collect_node", interrupted)
    x, records, _ = play(config(4), tmp_path / "ray")
    assert killed
    assert torch.equal(x, expected)
    assert sum(record.hosts.restarted for record in records) == 1


def test_the_coordinator_receives_sums_and_no_uploads(
    three_nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[Outcome] = []
    partials: list[Partial] = []
    ended = RayPool._call_ended

    def spy(self: RayPool, training: Any, number: int, ref: Any, future: Any) -> None:
        result = opened(future.result(), *ray.get(training.other_parts[ref]))
        received.extend(result.outcomes)
        partials.extend([result.partial] if result.partial is not None else [])
        ended(self, training, number, ref, future)

    monkeypatch.setattr(RayPool, "_call_ended", spy)
    play(config(2), tmp_path / "ray")
    assert len(received) == 6 * ROUNDS
    assert all(outcome.payload is None for outcome in received)
    assert sorted(c for partial in partials for c in partial.clients) == sorted(o.client for o in received)
    assert len(partials) <= 2 * ROUNDS, "one per host and round"


def test_a_killed_process_is_a_lost_host(three_nodes: Cluster, tmp_path: Path) -> None:
    """SIGKILL instead of Ray's own kill, in the middle of training."""
    slow = {"local": {"epochs": 60, "stack": 0}}
    expected, _, _ = play(config(1, **slow), tmp_path / "local", on_ray=False)
    problem, data = prepare(config(2, **slow))
    made = ray_pool(problem, data, tmp_path)
    state, restarted = initial_state(problem, data), 0
    for index in range(ROUNDS):
        if index == 1:
            host = next(iter(made.hosts.all.values()))
            pid = ray.get(
                ray.remote(lambda a: ray.get(a.__ray_call__.remote(lambda _: os.getpid()))).remote(host.actor)
            )
            os.kill(pid, signal.SIGKILL)
        state, record = run_round(problem, data, made, state)
        restarted += record.hosts.restarted
    made.close()
    assert restarted == 1
    assert torch.equal(state.server.x, expected)
