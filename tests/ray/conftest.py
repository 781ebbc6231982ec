"""Real Ray clusters of several raylets on this machine. Tests that need the same nodes share a cluster."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from tests.conftest import free_port

# Ray would start a worker per CPU of the head in advance, more than most tests use.
NO_SPARE_WORKERS = {"RAY_prestart_worker_first_driver": "0"}
# With these, Ray detects a dead node after about one second instead of fifteen.
SETTINGS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_AUTH_MODE": "disabled",
}


@pytest.fixture(scope="session", autouse=True)
def ray_environment() -> None:
    """Set the environment of every process that the tests start."""
    os.environ.update(SETTINGS)


def start_cluster(*nodes: dict[str, Any]) -> Cluster:
    """Start a head and more nodes with these resources, and join them as the driver."""
    SHARED.stop()  # a process can be in one cluster only
    # No test reads what the log monitor collects, the output of workers, and these clusters have no autoscaler.
    unused = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    head = {**unused, "dashboard_port": free_port(), **nodes[0]}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in NO_SPARE_WORKERS.items():
            patch.setenv(name, value)
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for node in nodes[1:]:
            cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()
    return cluster


def stop_cluster(cluster: Cluster) -> None:
    """Leave the cluster and stop its processes."""
    ray.shutdown()
    cluster.shutdown()


class Clusters:
    """The cluster that this process has joined. It runs until a test needs other nodes."""

    def __init__(self) -> None:
        self._nodes: tuple[dict[str, Any], ...] = ()
        self._running: Cluster | None = None

    def get(self, *nodes: dict[str, Any]) -> Cluster:
        """Return a cluster with these nodes: the running one, or a new one."""
        if self._running is None or nodes != self._nodes:
            self.stop()
            self._nodes, self._running = nodes, start_cluster(*nodes)
        return self._running

    def stop(self) -> None:
        """Stop the running cluster: a test joins another one, or has changed its nodes."""
        if self._running is not None:
            stop_cluster(self._running)
            self._running = None


SHARED = Clusters()


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    """The clusters that tests share."""
    yield SHARED
    SHARED.stop()


@pytest.fixture
def three_nodes(clusters: Clusters) -> Cluster:
    """Three nodes with two logical CPUs each."""
    return clusters.get(*[{"num_cpus": 2}] * 3)


@pytest.fixture
def one_node(clusters: Clusters) -> Cluster:
    """A node with three logical CPUs."""
    return clusters.get({"num_cpus": 3})
