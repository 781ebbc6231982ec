"""SIGKILL at random moments: to hosts, to nodes, to the coordinator, to the driver. The weights come out the same."""

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

from raybcgd import run
from tests.conftest import small
from tests.ray.conftest import start_cluster, stop_cluster

pytestmark = pytest.mark.ray


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    started = start_cluster(*[{"num_cpus": 2}] * 3)
    yield started
    stop_cluster(started)


def workers(cluster: Cluster, title: str) -> list[psutil.Process]:
    """The processes of actors of a class, on any node of this cluster and of no other."""
    found = []
    for node in cluster.list_all_nodes():
        try:
            raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
            found += [child for child in raylet.children() if " ".join(child.cmdline()).startswith(f"ray::{title}")]
        except psutil.NoSuchProcess:
            continue
    return found


class Chaos:
    """Kills things at random moments."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster, self._random = cluster, random.Random(seed)

    def strike(self, kind: str, alive: Callable[[], bool]) -> None:
        """Wait for a random moment, then kill one thing of a kind."""
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


def disturbed_run(cluster: Cluster, tmp_path: Path, rounds: int, kinds: list[str]) -> None:
    """Run undisturbed in one process, then on the cluster with kills, and compare."""
    tables = {"rounds": rounds, "local": {"epochs": 30}, "checkpoint": {"every": 3}}
    expected = run(small(**tables), out=tmp_path / "undisturbed").summary["sha256"]
    chaos = Chaos(cluster, seed=1)
    # Ray adds nodes from the main thread only, so it is the run that goes to another one.
    with ThreadPoolExecutor(1) as executor:
        config = small(**tables, engine="ray", hosts={"count": 3, "max_retries": 20})
        future = executor.submit(run, config, out=tmp_path / "disturbed")
        for kind in kinds:
            chaos.strike(kind, alive=lambda: not future.done())
        result = future.result()
    assert result.summary["sha256"] == expected
    assert [record.round for record in result.records] == list(range(rounds))


def test_short_chaos(cluster: Cluster, tmp_path: Path) -> None:
    disturbed_run(cluster, tmp_path, rounds=30, kinds=["host", "node", "coordinator", "host", "host"])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_long_chaos(cluster: Cluster, tmp_path: Path) -> None:
    disturbed_run(cluster, tmp_path, rounds=60, kinds=["host", "node", "host", "coordinator", "host"] * 4)
