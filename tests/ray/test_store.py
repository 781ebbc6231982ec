"""One copy of the data a node, however many hosts and runs use it: measured at the object store itself."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
from ray._private.internal_api import node_stats
from ray.cluster_utils import Cluster

from raybcgd import Config, Dataset, run
from raybcgd.record.rounds import RoundRecord
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


def config(hosts: int, **tables: object) -> Config:
    return small(
        engine="ray",
        rounds=2,
        model={"options": {"hidden": [4, 4, 4]}},
        hosts={"count": hosts},
        local={"steps": 1},
        **tables,
    )


def most_stored(settings: Config, dataset: Dataset, out: Path) -> int:
    """The most that the store held when a round was over, with all hosts up."""
    seen: list[int] = []

    def look(record: RoundRecord) -> None:
        assert record.hosts == settings.hosts.count
        seen.append(stored())

    run(settings, dataset=dataset, out=out, observe=look)
    return max(seen)


def test_hosts_and_runs_of_a_driver_share_one_copy(tmp_path: Path) -> None:
    empty = stored()
    used = most_stored(config(3), pictures(), tmp_path / "three hosts") - empty
    assert SIZE <= used <= SIZE + SLACK
    fedavg = config(1, algorithm={"name": "fedavg", "lr": 0.1})
    used = most_stored(fedavg, pictures(), tmp_path / "read again") - empty
    assert used <= SIZE + SLACK, "a second run, which has read the data anew, adds no copy"
    used = most_stored(fedavg, pictures(seed=1), tmp_path / "other") - empty
    assert SIZE <= used <= SIZE + SLACK, "other data take the place of the first"
