"""The elastic pool by itself: hosts come for what a cohort can use, and go when later cohorts cannot."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

from raybcgd import ConfigError, RunError, run
from raybcgd.engine.ray.pool import RayPool
from raybcgd.messages import Job
from raybcgd.problem import prepare
from raybcgd.server.evaluation import pieces
from tests.conftest import small
from tests.ray.conftest import start_cluster, stop_cluster

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    started = start_cluster({"num_cpus": 3})
    yield started
    stop_cluster(started)


def test_a_host_that_does_not_see_the_states_is_refused_at_once(cluster: Cluster, tmp_path: Path) -> None:
    """As on the machines of a cloud when the run's folder is on the head's disk."""
    problem, data = prepare(small(hosts={"max_count": 1}))
    pool = RayPool(problem, ray.put(data), [data.partitions[0].sizes], str(tmp_path / "states"))
    (tmp_path / "states").rmdir()
    pool._resize([Job(0, block=0)])
    with pytest.raises(ConfigError, match=r"does not see .*states.* set checkpoint\.address to a place that"):
        pool._await_host()
    pool.close()


def test_hosts_that_no_cohort_uses_are_given_back(cluster: Cluster, tmp_path: Path) -> None:
    problem, data = prepare(small(local={"stack": 0}, data={"partition": {"kind": "iid"}}, hosts={"max_count": 5}))
    pool = RayPool(problem, ray.put(data), [data.partitions[0].sizes], str(tmp_path / "states"))
    jobs = [Job(client, block=0) for client in range(6)]
    pool._resize(jobs)
    assert len(pool._hosts) == 5  # no more than hosts.max_count, though six clients could use six
    deadline = time.monotonic() + 60
    while len(pool._up()) < 3 and time.monotonic() < deadline:
        done, _ = ray.wait(list(pool._starting()), timeout=1)
        for ref in done:
            pool._started(pool._starting()[ref])
    assert len(pool._up()) == 3  # the others wait for nodes
    for _ in range(9):
        pool._resize(jobs[:1])
    assert len(pool._hosts) == 5  # kept for a while: the next cohort may use them
    parts = pieces([len(rows) for rows in data.test_rows], 32)
    scores = pool.evaluate([np.zeros(problem.layout.size, np.float32)], parts)
    pool._resize(jobs[:1])
    assert len(pool._hosts) == len(pool._up()) == 1
    assert len(scores()) == len(parts)  # what hosts were at, they ended first
    assert pool.news().restarted == 0
    while ray.available_resources().get("CPU") != 2 and time.monotonic() < deadline + 30:
        time.sleep(0.2)
    assert ray.available_resources()["CPU"] == 2
    pool._resize(jobs)
    assert len(pool._hosts) == 5
    pool.close()


@pytest.mark.slow
def test_a_client_whose_host_never_comes_ends_the_run(cluster: Cluster, tmp_path: Path) -> None:
    """Five homes for twenty clients where three hosts fit and no autoscaler brings more."""
    hosts = {"clients_per_host": 4, "max_count": 5, "start_timeout_seconds": 20}
    config = small(engine="ray", data={"partition": {"clients": 20}}, hosts=hosts)
    with pytest.raises(RunError, match=r"no host came up within hosts\.start_timeout_seconds = 20: each asks"):
        run(config, out=tmp_path / "run")
