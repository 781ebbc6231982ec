"""Ray with two hosts, each on a logical GPU of its own that is a stand-in."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from raybcgd.engine.ray.hosts import HostGroup
from raybcgd.experiment import run
from raybcgd.problem import prepare
from tests.conftest import ONE_BY_ONE
from tests.device.conftest import on, outcome, with_poison
from tests.ray.conftest import SETTINGS, start_cluster, stop_cluster

pytestmark = pytest.mark.device

TWO_HOSTS = {"clients_per_host": 10, "num_gpus": 1}
"""Each host has its own half of the clients, so a round needs both."""


@pytest.fixture(scope="module")
def two_gpus(accelerator: None) -> Iterator[Cluster]:
    """A node with two logical GPUs."""
    os.environ.update(SETTINGS)
    cluster = start_cluster({"num_cpus": 2, "num_gpus": 2})
    yield cluster
    stop_cluster(cluster)


def test_a_worker_sees_the_accelerator_that_it_was_granted(two_gpus: Cluster) -> None:
    @ray.remote
    def devices() -> tuple[str | None, int]:
        import torch

        return os.environ.get("CUDA_VISIBLE_DEVICES"), torch.accelerator.device_count()

    visible, count = ray.get(devices.options(num_gpus=1).remote())
    assert visible in ("0", "1")
    assert count == 1


def test_two_hosts_on_two_gpus_give_the_bits_of_the_cpu(two_gpus: Cluster, out: Path) -> None:
    """With stacked clients. The next test trains one client at a time."""
    tables: dict[str, Any] = {"wire": {"codec": "topk"}}
    expected = run(on("cpu", **tables), out=out / "cpu")
    model = {"name": "tests.device.models:OnTheDevice"}
    result = run(on("gpu", engine="ray", hosts=TWO_HOSTS, model=model, **tables), out=out / "gpu")
    assert outcome(result) == outcome(expected)
    assert result.records[-1].hosts.up == 2


def test_a_run_moves_to_another_engine_and_device(two_gpus: Cluster, out: Path) -> None:
    run(on("cpu", rounds=2, local=ONE_BY_ONE), out=out / "moved")
    moved = run(on("gpu", engine="ray", rounds=4, local=ONE_BY_ONE, hosts=TWO_HOSTS), out=out / "moved", resume=True)
    assert moved.records[-1].hosts.up == 2
    assert outcome(moved) == outcome(run(on("cpu", rounds=4, local=ONE_BY_ONE), out=out / "whole"))


@pytest.mark.parametrize(("spread", "used"), [(True, 2), (False, 1)])
def test_hosts_use_both_gpus_before_they_share_one(two_gpus: Cluster, out: Path, spread: bool, used: int) -> None:
    problem, data = prepare(on("gpu", engine="ray", hosts={"num_gpus": 0.25, "count": 2, "spread": spread}))
    hosts = HostGroup(problem, ray.put(data), str(out / "states"))
    try:
        while starting := hosts.starting():
            hosts.finish_start(starting[ray.wait(list(starting))[0][0]])
        assert len({host.place.gpus for host in hosts.all.values() if host.place is not None}) == used
    finally:
        hosts.stop()


def test_a_host_whose_device_breaks_in_an_evaluation_is_replaced(two_gpus: Cluster, out: Path, tmp_path: Path) -> None:
    (fuse := tmp_path / "fuse").touch()
    model = {"name": "tests.device.models:BreaksOnce", "options": {"fuse": str(fuse)}}
    config = on("gpu", engine="ray", rounds=3, hosts={"num_gpus": 0.25, "count": 2}, model=model)
    result = run(config, out=out / "gpu")
    assert not fuse.exists()
    assert sum(record.hosts.restarted for record in result.records) == 1
    assert not any(record.dropped for record in result.records)
    assert outcome(result) == outcome(run(on("cpu", rounds=3, model=model), out=out / "cpu"))


def test_a_client_that_breaks_its_device_is_dropped_and_its_host_replaced(two_gpus: Cluster, out: Path) -> None:
    """A stack breaks the device first, then the client alone."""
    config = on(
        "gpu",
        engine="ray",
        rounds=1,
        hosts={"num_gpus": 1, "count": 2},
        local={"stack": 4},
        cohort={"clients_per_block": None, "clients_per_round": 8, "on_client_error": "drop"},
        data={"partition": {"kind": "iid", "clients": 8}},
        model={"name": "tests.device.models:Poisonous", "options": {}},
        blocks={"count": 1},
    )
    (record,) = run(config, dataset=with_poison(8), out=out).records
    (dropped,) = record.dropped
    assert "device-side assert" in dropped.reason
    assert len(record.participants) == 7
    assert record.hosts.restarted >= 1
