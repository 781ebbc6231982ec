"""Hosts on fractions of logical GPUs, on a cluster of different nodes."""

import re
from collections import Counter
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import RayTaskError
from ray.util.state import list_actors

from raybcgd.config import load_config
from raybcgd.engine.ray.host_actor import HostActor, HostPlace, submit
from raybcgd.engine.ray.object_store import put_once
from raybcgd.errors import ConfigError
from raybcgd.experiment import run
from raybcgd.messages import ClientTask, RoundOrders
from raybcgd.problem import prepare
from raybcgd.record.rounds import RoundRecord
from tests.conftest import small
from tests.engine.test_demand import QUICKSTART
from tests.ray.conftest import Clusters

pytestmark = pytest.mark.ray


@pytest.fixture
def gpu_cluster(clusters: Clusters) -> Cluster:
    """A head without GPUs, and two nodes with two logical GPUs each."""
    return clusters.get(
        {"num_cpus": 1, "num_gpus": 0, "include_dashboard": True}, *[{"num_cpus": 0, "num_gpus": 2}] * 2
    )


@pytest.fixture
def four_gpus(clusters: Clusters) -> Cluster:
    """A node with four logical GPUs."""
    return clusters.get({"num_cpus": 3, "num_gpus": 4})


@pytest.mark.slow
def test_four_hosts_on_each_of_four_gpus(gpu_cluster: Cluster, out: Path) -> None:
    places: list[HostPlace] = []
    requested: list[dict[str, float]] = []
    shown: list[str] = []

    class Done(Exception):
        pass

    def observe(record: RoundRecord) -> None:
        if record.hosts.up < 16:
            return
        actors = list_actors(
            filters=[("class_name", "=", "HostActor"), ("state", "=", "ALIVE")], detail=True, limit=100
        )
        requested.extend(actor.required_resources for actor in actors)
        shown.extend(actor.repr_name for actor in actors)
        hosts = [ray.get_actor(actor.name, actor.ray_namespace) for actor in actors]
        places.extend(ray.get([host.place.remote() for host in hosts]))
        raise Done

    config = small(
        engine="ray",
        rounds=600,
        blocks={"count": 2},
        cohort={"clients_per_block": 8},
        hosts={"num_gpus": 0.25, "logical_gpus": True, "count": 16, "memory_mb": 100},
        checkpoint={"every": 0},
    )
    with pytest.raises(Done):
        run(config, out=out, observe=observe)
    assert requested == [{"GPU": 0.25, "memory": 100 * 2**20}] * 16
    # What Ray's dashboard shows.
    assert all(re.fullmatch(r"raybcgd-.*-run-....-host-\d+-gpu-\d+ on GPU [01]", name) for name in shown), shown
    on_gpu = Counter((place.node, place.gpus) for place in places)
    assert len(on_gpu) == 4
    assert set(on_gpu.values()) == {4}
    head = gpu_cluster.head_node.node_id
    assert head not in {place.node for place in places}


def test_the_error_for_hosts_that_do_not_fit_names_the_capacity(four_gpus: Cluster, out: Path) -> None:
    config = small(engine="ray", hosts={"num_gpus": 0.3, "count": 13})
    with pytest.raises(ConfigError, match=r"hosts\.count = 13 requires 13 hosts of 0\.3 GPU each, but only 12 fit"):
        run(config, out=out)


def test_a_granted_gpu_that_is_not_there_ends_the_run(four_gpus: Cluster, out: Path) -> None:
    config = small(engine="ray", hosts={"num_gpus": 0.5, "count": 1})
    with pytest.raises(ConfigError, match=r"a host was granted GPU \d, but torch .* finds no accelerator: ") as raised:
        run(config, out=out)
    assert "\n" not in str(raised.value)


def test_an_error_of_a_host_names_its_round_and_clients(one_node: Cluster, tmp_path: Path) -> None:
    problem, data = prepare(small(engine="ray"))
    host = HostActor.options(name="raybcgd-x-host-0-cpu-0").remote(problem, put_once(data), str(tmp_path))
    tasks = [ClientTask(3, 0), ClientTask(5, 0)]
    with pytest.raises(RayTaskError, match=r"repr=raybcgd-x-host-0-cpu-0 on the CPU, round 8, clients 3, 5\)"):
        ray.get(submit(host, ({}, RoundOrders(7, lr=0.05)), tasks, hand_over=True)[0])  # without the model


def test_the_quickstart_starts_one_host_although_more_fit(one_node: Cluster, out: Path) -> None:
    config = load_config(QUICKSTART, ["engine=ray"])
    assert {record.hosts.up for record in run(config, out=out).records} == {1}
