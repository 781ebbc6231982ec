"""The elastic pool without a run: it starts as many hosts as a cohort can use, and stops unused ones later."""

import time
from pathlib import Path

import pytest
import ray
import torch
from ray.cluster_utils import Cluster

from raybcgd.engine.ray.hosts import HostGroup
from raybcgd.engine.ray.pool import RayPool
from raybcgd.errors import ConfigError, RunError
from raybcgd.experiment import run
from raybcgd.problem import prepare
from raybcgd.record.rounds import LiveHosts
from raybcgd.server.evaluation import pieces
from tests.conftest import small

pytestmark = pytest.mark.ray


def test_a_host_that_cannot_reach_the_states_is_an_error(one_node: Cluster, tmp_path: Path) -> None:
    """This happens in the cloud if the run folder is on the head's disk."""
    problem, data = prepare(small(hosts={"max_count": 1}))
    hosts = HostGroup(problem, ray.put(data), str(tmp_path / "states"))
    (tmp_path / "states").rmdir()
    hosts.scale([1])
    with pytest.raises(ConfigError, match=r"cannot reach .*states.* set checkpoint\.address to one that"):
        hosts.wait_for_any()
    hosts.stop()


def test_hosts_that_no_cohort_uses_are_released(one_node: Cluster, tmp_path: Path) -> None:
    problem, data = prepare(small(local={"stack": 0}, data={"partition": {"kind": "iid"}}, hosts={"max_count": 5}))
    pool = RayPool(problem, ray.put(data), [data.partitions[0].sizes], str(tmp_path / "states"))
    hosts = pool.hosts
    hosts.scale([4] * 6)
    assert len(hosts.all) == 5  # six clients could use six hosts, but hosts.max_count is 5
    deadline = time.monotonic() + 60
    while len(hosts.up()) < 3 and time.monotonic() < deadline:
        done, _ = ray.wait(list(hosts.starting()), timeout=1)
        for ref in done:
            hosts.finish_start(hosts.starting()[ref])
    assert len(hosts.up()) == 3  # the others wait for nodes
    for _ in range(9):
        hosts.scale([4])
    assert len(hosts.all) == 5  # kept for some rounds, because the next cohort may use them
    parts = pieces([len(rows) for rows in data.test_rows], 32)
    scores = pool.evaluate([torch.zeros(problem.layout.size)], parts)
    hosts.scale([4])
    assert len(hosts.all) == len(hosts.up()) == 1
    assert len(scores()) == len(parts)  # released hosts finish their evaluation first
    assert pool.report().hosts.restarted == 0
    while ray.available_resources().get("CPU") != 2 and time.monotonic() < deadline + 30:
        time.sleep(0.2)
    assert ray.available_resources()["CPU"] == 2
    hosts.scale([4] * 6)
    assert len(hosts.all) == 5
    pool.close()


def test_only_hosts_that_were_up_count_as_lost(one_node: Cluster, tmp_path: Path) -> None:
    """If a node dies while its hosts start, each of them may fail several times."""
    problem, data = prepare(small(hosts={"count": 1}))
    hosts = HostGroup(problem, ray.put(data), str(tmp_path / "states"))
    ray.kill(hosts.all[0].actor)
    assert not hosts.finish_start(0)
    assert hosts.live() == LiveHosts(up=0, pending=1, restarted=0)
    hosts.wait_for_any()
    hosts.replace(*hosts.up())
    assert hosts.live() == LiveHosts(up=0, pending=1, restarted=1)
    hosts.stop()


@pytest.mark.slow
def test_the_run_stops_if_a_clients_fixed_host_never_starts(one_node: Cluster, tmp_path: Path) -> None:
    """Twenty clients have five fixed hosts. Three fit on the cluster, and no autoscaler adds nodes."""
    hosts = {"clients_per_host": 4, "max_count": 5, "start_timeout_seconds": 20}
    config = small(engine="ray", data={"partition": {"clients": 20}}, hosts=hosts)
    with pytest.raises(RunError, match=r"no host started within hosts\.start_timeout_seconds = 20: each requests"):
        run(config, out=tmp_path / "run")
