"""All hosts and runs on a node share one copy of the data, as measured in the object store."""

import threading
from pathlib import Path

import numpy as np
import pytest
import ray
from ray._private.internal_api import node_stats

from raybcgd import Config, Dataset
from raybcgd.engine.ray.host_actor import HostActor, opened, submit
from raybcgd.engine.ray.object_store import put_once
from raybcgd.experiment import run
from raybcgd.messages import ClientTask, RoundOrders
from raybcgd.problem import prepare
from tests.conftest import ONE_BY_ONE, small
from tests.ray.conftest import Clusters
from tests.ray.slow import Slow

pytestmark = pytest.mark.ray

IMAGES = 6000
SIZE = (IMAGES + 1000) * 3 * 32 * 32
"""Bytes of the images, 21 MB."""
SLACK = 3_000_000
"""For labels, partition, models and messages, which are much smaller than the images."""


@pytest.fixture(autouse=True)
def node(clusters: Clusters) -> None:
    """A node whose object store no other test uses."""
    clusters.get({"num_cpus": 4})


def random_images(seed: int = 0) -> Dataset:
    """Return a new data set with the same bytes on every call, as if it were read from files."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (IMAGES + 1000, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, len(images))
    return Dataset.from_tensors(images[:IMAGES], labels[:IMAGES], images[IMAGES:], labels[IMAGES:])


def stored() -> int:
    """Return the bytes in the object store of the node."""
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
        local={"steps": 1, **ONE_BY_ONE},
    )


def test_the_hosts_on_a_node_share_one_copy(tmp_path: Path) -> None:
    empty = stored()
    problem, data = prepare(config(), dataset=random_images())
    ref = put_once(data)
    hosts = [HostActor.remote(problem, ref, str(tmp_path)) for _ in range(3)]
    zero = np.zeros(problem.layout.size, dtype=np.float32)
    shared = ({"x": zero, "c": zero}, RoundOrders(0, lr=0.05))
    work = [submit(host, shared, [ClientTask(client, 0)], hand_over=True)[0] for client, host in enumerate(hosts)]
    assert [outcome.error for result in map(opened, ray.get(work)) for outcome in result.outcomes] == [None] * 3
    assert SIZE <= stored() - empty <= SIZE + SLACK
    assert put_once(prepare(config(), dataset=random_images())[1]) == ref, "the same data is not put again"


def test_the_runs_of_a_driver_share_one_copy(tmp_path: Path) -> None:
    def peak_bytes(method: str, seed: int) -> int:
        seen: list[int] = []
        run(
            config(method),
            dataset=random_images(seed),
            out=tmp_path / f"{method}-{seed}",
            observe=lambda _: seen.append(stored()),
        )
        return max(seen)

    assert SIZE <= peak_bytes("fedbcgd+", seed=2) <= SIZE + SLACK, "the data of the previous test was freed"
    assert peak_bytes("fedavg", seed=2) <= SIZE + SLACK, "a second run that reads the data again adds no copy"


def test_uploads_leave_the_store_while_the_round_continues(tmp_path: Path) -> None:
    """Otherwise, a round with large models would fill the store of the head, and spill to its disk."""
    clients, seen, ended = 30, [], threading.Event()
    config = small(
        engine="ray",
        rounds=1,
        algorithm={"name": "fedavg", "lr": 0.05},
        data={"partition": {"kind": "iid", "clients": clients}},
        cohort={"clients_per_block": None, "clients_per_round": clients},
        hosts={"count": 1, "aggregation": "coordinator"},
        local={"steps": 1, **ONE_BY_ONE},
        checkpoint={"every": 0},
    )

    def sample() -> None:
        while not ended.wait(0.01):
            seen.append(stored())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        # A round takes several seconds: Ray frees objects once per second.
        result = run(config, module=Slow(width=700, seconds=0.3), out=tmp_path / "run")
    finally:
        ended.set()
    thread.join()
    uploaded = result.records[-1].traffic.upload_bytes
    print(f"uploads of a round: {uploaded / 1e6:.0f} MB; peak of the store: {(max(seen) - min(seen)) / 1e6:.0f} MB")
    assert uploaded > 60e6
    assert 1e6 < max(seen) - min(seen) < 0.85 * uploaded
