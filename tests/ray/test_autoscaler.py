"""Ray's autoscaler with its fake provider: nodes are added for pending hosts, lost, and removed when idle."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import ray
from ray.util import list_named_actors

from raybcgd.engine.ray.host_actor import HostPlace
from raybcgd.experiment import run
from raybcgd.record.rounds import RoundRecord
from tests.conftest import small
from tests.ray.conftest import Clusters
from tests.ray.heads import Head, head
from tests.ray.slow import Slow

pytestmark = pytest.mark.ray

GPU_NODE = {"CPU": 1, "GPU": 1, "object_store_memory": 200_000_000}
CLUSTER = {
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "gpu": {"resources": GPU_NODE, "node_config": {}, "min_workers": 0, "max_workers": 3},
    }
}
TABLES = {"rounds": 60, "local": {"epochs": 2, "stack": 0}, "evaluation": {"every": 10}, "checkpoint": {"every": 20}}
# The fake provider cannot start nodes of a type with memory.
HOSTS = {"device": "gpu", "logical_gpus": True, "num_gpus": 0.5, "max_count": 4, "memory_mb": 0}


@pytest.fixture(scope="module")
def cluster(clusters: Clusters) -> Iterator[Head]:
    """A head without CPUs and GPUs, whose autoscaler can add nodes with one logical GPU each."""
    clusters.stop()
    with head(
        "--num-cpus=0",
        "--num-gpus=0",
        "--object-store-memory=200000000",
        dashboard=False,
        autoscaling=CLUSTER,
        AUTOSCALER_HEARTBEAT_TIMEOUT_S="5",
    ) as started:
        ray.init(address=started.address, log_to_driver=False)
        yield started
        ray.shutdown()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The SHA-256 of the final weights of the local engine."""
    result = run(small(**TABLES), module=Slow(), out=tmp_path_factory.mktemp("local") / "run")
    return str(result.summary["sha256"])


def gpu_nodes() -> list[dict[str, str]]:
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]


def places() -> list[HostPlace]:
    """Return where the hosts that are up run."""
    named = [actor for actor in list_named_actors(all_namespaces=True) if "-host-" in actor["name"]]
    found = []
    for actor in named:
        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            host = ray.get_actor(actor["name"], actor["namespace"])
            found.append(ray.get(host.place.remote(), timeout=5))
    return found


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.5)
    return condition()


def test_nodes_are_added_for_pending_hosts_and_removed_after_the_run(
    cluster: Head, out: Path, expected: str, record_property: Callable[[str, object], None]
) -> None:
    assert "GPU" not in ray.cluster_resources()
    seconds: list[float] = []
    full: list[HostPlace] = []
    started = time.monotonic()

    def observe(record: RoundRecord) -> None:
        seconds.append(time.monotonic() - started)
        if record.hosts.up == 4 and not full:
            full.extend(places())

    result = run(small(**TABLES, engine="ray", hosts=HOSTS), module=Slow(), out=out, observe=observe)
    record_property("seconds_to_first_round", round(seconds[0], 1))
    print(f"first round after {seconds[0]:.1f} s, starting without nodes; {seconds[-1]:.1f} s in total")
    assert result.summary["sha256"] == expected
    assert result.records[-1].hosts.up == 4
    on_gpu = Counter((place.node, place.gpus) for place in full)
    assert sorted(on_gpu.values()) == [2, 2], full
    assert {node["NodeID"] for node in gpu_nodes()} >= {node for node, _ in on_gpu}
    ended = time.monotonic()
    assert wait_until(lambda: not gpu_nodes(), 60), ray.nodes()
    print(f"idle nodes were removed {time.monotonic() - ended:.1f} s after the run (their timeout is 6 s)")


@pytest.mark.slow
def test_only_the_work_of_a_lost_node_is_repeated(cluster: Head, out: Path, expected: str) -> None:
    killed: list[int] = []

    def kill_a_node(record: RoundRecord) -> None:
        if record.hosts.up == 4 and not killed:
            socket = gpu_nodes()[0]["RayletSocketName"]
            (raylet,) = [p for p in psutil.process_iter(["cmdline"]) if f"--raylet_socket_name={socket}" in p.cmdline()]
            raylet.kill()
            killed.append(record.round)

    result = run(small(**TABLES, engine="ray", hosts=HOSTS), module=Slow(), out=out, observe=kill_a_node)
    print("hosts per round:", [record.hosts.up for record in result.records], "killed after round", killed)
    assert killed
    assert result.summary["sha256"] == expected
    after = [record for record in result.records if record.round > killed[0]]
    hosts = [record.hosts.up for record in after]
    assert min(hosts) <= 2
    assert max(hosts[hosts.index(min(hosts)) :]) > 2  # the autoscaler added another node
    assert sum(record.hosts.restarted for record in after) >= 2
    assert max(record.hosts.retried_tasks for record in after) < 6  # fewer than the whole cohort
