"""SIGKILL to hosts, nodes and the coordinator at random moments. The final weights stay the same."""

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from ray.cluster_utils import Cluster

from raybcgd.experiment import run
from tests.conftest import small
from tests.ray.conftest import Clusters

pytestmark = pytest.mark.ray


@pytest.fixture
def cluster(clusters: Clusters) -> Iterator[Cluster]:
    yield clusters.get(*[{"num_cpus": 2}] * 3)
    clusters.stop()  # its nodes are others than before


def workers(cluster: Cluster, title: str) -> list[psutil.Process]:
    """Return the processes of an actor class on the nodes of this cluster only."""
    found = []
    for node in cluster.list_all_nodes():
        try:
            raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
            found += [child for child in raylet.children() if " ".join(child.cmdline()).startswith(f"ray::{title}")]
        except psutil.NoSuchProcess:
            continue
    return found


class Chaos:
    """Kills hosts, nodes and coordinators at random moments."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster, self._random = cluster, random.Random(seed)

    def kill(self, kind: str, alive: Callable[[], bool]) -> None:
        """Wait for a random time, then kill one process or node of a kind."""
        time.sleep(self._random.uniform(0.2, 2.0))
        while alive():
            if kind == "node":
                others = [node for node in self._cluster.list_all_nodes() if node is not self._cluster.head_node]
                self._cluster.remove_node(self._random.choice(others), allow_graceful=False)
                self._cluster.add_node(num_cpus=2)
                return
            there = workers(self._cluster, {"host": "HostActor", "coordinator": "Coordinator"}[kind])
            with contextlib.suppress(psutil.NoSuchProcess):
                if there:
                    self._random.choice(there).send_signal(signal.SIGKILL)
                    return
            time.sleep(0.1)
        pytest.fail(f"the run ended before a {kind} could be killed; make it longer")


def run_with_failures(cluster: Cluster, tmp_path: Path, rounds: int, kinds: list[str]) -> None:
    """Run without failures in one process, then with failures on the cluster, and compare the weights."""
    tables = {"rounds": rounds, "local": {"epochs": 30}, "checkpoint": {"every": 3}}
    expected = run(small(**tables), out=tmp_path / "local").summary["sha256"]
    chaos = Chaos(cluster, seed=1)
    # Ray can add nodes only in the main thread, so the run is in a second thread.
    with ThreadPoolExecutor(1) as executor:
        config = small(**tables, engine="ray", hosts={"count": 3, "max_retries": 20})
        future = executor.submit(run, config, out=tmp_path / "ray")
        for kind in kinds:
            chaos.kill(kind, alive=lambda: not future.done())
        result = future.result()
    assert result.summary["sha256"] == expected
    assert [record.round for record in result.records] == list(range(rounds))


def test_a_short_run_survives_failures(cluster: Cluster, tmp_path: Path) -> None:
    run_with_failures(cluster, tmp_path, rounds=30, kinds=["host", "node", "coordinator", "host", "host"])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_long_run_survives_failures(cluster: Cluster, tmp_path: Path) -> None:
    run_with_failures(cluster, tmp_path, rounds=60, kinds=["host", "node", "host", "coordinator", "host"] * 4)
