"""The shipped Prometheus config on a real Ray cluster with logical GPUs: it finds the run and Ray's nodes."""

import functools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from raybcgd.experiment import run
from raybcgd.record.rounds import RoundRecord
from tests.conftest import small
from tests.dashboards.server import Prometheus, until
from tests.ray.conftest import Clusters
from tests.ray.heads import Head, head

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus (Debian's package) is not installed"),
]

ROUNDS = 12
NAMES = (
    "traffic_upload_floats_total",
    "hosts_up",
    "hosts_object_store_capacity_bytes",
    "hosts_object_store_bytes",
)


@pytest.fixture(scope="module")
def cluster(clusters: Clusters) -> Iterator[Head]:
    clusters.stop()
    with head("--num-cpus=2", "--num-gpus=2") as started:
        yield started


@pytest.mark.slow
def test_prometheus_finds_the_run_and_rays_nodes(cluster: Head, tmp_path: Path) -> None:
    (tmp_path / "ray").symlink_to(cluster.home / "ray")  # where the config expects Ray's folder
    server = Prometheus(tmp_path)
    seen: dict[str, float | None] = {}

    def observe(record: RoundRecord) -> None:
        if record.round == ROUNDS - 1:
            until(lambda: server.values("round") == ROUNDS - 1, 10)
            for name in NAMES:
                seen[name] = server.values(name)

    hosts = {"address": cluster.address, "device": "cpu", "count": 1}
    metrics = {"discovery": str(server.discovery)}
    try:
        result = run(
            small(rounds=ROUNDS, local={"epochs": 120}, engine="ray", hosts=hosts, metrics=metrics),
            out=tmp_path / "run",
            observe=observe,
        )
        # Ray exports its own metrics every ten seconds.
        for expr in ('ray_resources{Name="GPU"}', "ray_node_cpu_utilization", "ray_node_mem_used / ray_node_mem_total"):
            until(functools.partial(server.query, expr), 60)
    finally:
        server.close()
    log = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    assert seen["traffic_upload_floats_total"] == sum(line["traffic"]["upload_floats"] for line in log)
    assert seen["hosts_up"] == 1
    assert seen["hosts_object_store_capacity_bytes"] == log[-1]["hosts"]["object_store_capacity_bytes"] > 0
    assert seen["hosts_object_store_bytes"] == log[-1]["hosts"]["object_store_bytes"]
    assert len(result.records) == ROUNDS
    assert not list(server.discovery.iterdir())
