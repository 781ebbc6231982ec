"""One copy of the data a node, however many hosts and runs use it: measured at the object store itself."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
from ray._private.internal_api import node_stats
from ray.cluster_utils import Cluster

from raybcgd import Config, Dataset, run
from raybcgd.engine.ray.coordinator import put_once
from raybcgd.engine.ray.host_actor import HostActor
from raybcgd.messages import Job, Orders
from raybcgd.problem import prepare
from tests.conftest import small
from tests.ray.conftest import start_cluster, stop_cluster

pytestmark = pytest.mark.ray

IMAGES = 6000
SIZE = (IMAGES + 1000) * 3 * 32 * 32
"""Bytes of the pictures, 21 MB."""
SLACK = 3_000_000
"""Labels, partition, models and messages: small beside a copy of the pictures."""


@pytest.fixture(scope="module", autouse=True)
def one_node() -> Iterator[Cluster]:
    cluster = start_cluster({"num_cpus": 4})
    yield cluster
    stop_cluster(cluster)


def pictures(seed: int = 0) -> Dataset:
    """A data set as if read from its files: the same bytes each time, in memory of its own."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (IMAGES + 1000, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, len(images))
    return Dataset.from_tensors(images[:IMAGES], labels[:IMAGES], images[IMAGES:], labels[IMAGES:])


def stored() -> int:
    """Bytes that the node's object store holds."""
    (node,) = [node for node in ray.nodes() if node["Alive"]]
    stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False)
    return int(stats.store_stats.object_store_bytes_used)


def config(method: str = "fedbcgd+") -> Config:
    return small(
        engine="ray",
        rounds=2,
        model={"options": {"hidden": [4, 4, 4]}},
        algorithm={"name": method, "lr": 0.05},
        hosts={"count": 1},
        local={"steps": 1},
    )


def test_hosts_of_a_node_share_one_copy(tmp_path: Path) -> None:
    empty = stored()
    problem, data = prepare(config(), dataset=pictures())
    ref = put_once(data)
    hosts = [HostActor.remote(problem, ref, str(tmp_path)) for _ in range(3)]
    zero = np.zeros(problem.layout.size, dtype=np.float32)
    down = {"x": zero, "c": zero}
    work = [host.train.remote([Job(client, 0)], down, Orders(0)) for client, host in enumerate(hosts)]
    assert [outcome.error for outcomes in ray.get(work) for outcome in outcomes] == [None] * 3
    assert SIZE <= stored() - empty <= SIZE + SLACK
    assert put_once(prepare(config(), dataset=pictures())[1]) == ref, "read anew, but the same"


def test_runs_of_a_driver_share_one_copy(tmp_path: Path) -> None:
    def used_in_a_run(method: str, seed: int) -> int:
        seen: list[int] = []
        run(
            config(method),
            dataset=pictures(seed),
            out=tmp_path / f"{method}-{seed}",
            observe=lambda _: seen.append(stored()),
        )
        return max(seen)

    assert SIZE <= used_in_a_run("fedbcgd+", seed=2) <= SIZE + SLACK, "the data of the test before have made room"
    assert used_in_a_run("fedavg", seed=2) <= SIZE + SLACK, "a second run, which has read the data anew, adds no copy"
