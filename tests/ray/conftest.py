"""Real Ray clusters of several raylets on this machine. Each test module has its own ports and folders."""

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

# With these, Ray detects a dead node after about one second instead of fifteen.
SETTINGS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_AUTH_MODE": "disabled",
    "RAY_preload_python_modules": "torch",
    "RAY_worker_niceness": "0",  # by default, workers starve on a busy machine
}


@pytest.fixture(scope="session", autouse=True)
def ray_environment() -> None:
    """Set the environment of every process that the tests start."""
    os.environ.update(SETTINGS)


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_cluster(*nodes: dict[str, Any]) -> Cluster:
    """Start a head and more nodes with these resources, and join them as the driver."""
    head = {"include_dashboard": False, "dashboard_port": free_port(), **nodes[0]}
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


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Cluster]:
    """Three nodes with two logical CPUs each."""
    cluster = start_cluster(*[{"num_cpus": 2}] * 3)
    yield cluster
    stop_cluster(cluster)
