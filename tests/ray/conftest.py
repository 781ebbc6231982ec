"""Real Ray clusters of several raylets in this machine, each test module with its own ports and folders."""

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

# A dead node is noticed after about a second instead of fifteen.
SETTINGS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_AUTH_MODE": "disabled",
    "RAY_preload_python_modules": "torch",
}


@pytest.fixture(scope="session", autouse=True)
def ray_environment() -> None:
    """The same settings for every process of every cluster that the tests start."""
    os.environ.update(SETTINGS)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_cluster(*nodes: dict[str, Any]) -> Cluster:
    """A head and further nodes with these resources, joined by this process as the driver."""
    head = {"include_dashboard": False, "dashboard_port": free_port(), **nodes[0]}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for node in nodes[1:]:
        cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()
    return cluster


def stop_cluster(cluster: Cluster) -> None:
    """Leave the cluster and end its processes."""
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Cluster]:
    """Three nodes of two (logical) CPUs each."""
    cluster = start_cluster(*[{"num_cpus": 2}] * 3)
    yield cluster
    stop_cluster(cluster)
