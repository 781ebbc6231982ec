"""Real Ray clusters of several raylets in this machine, each test module with its own ports and folders."""

import os
from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster

# A dead node is noticed after about a second instead of fifteen.
FAST_HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


@pytest.fixture(scope="session", autouse=True)
def ray_environment() -> None:
    """The same settings for every process of every cluster that the tests start."""
    os.environ.update(FAST_HEALTH_CHECKS)
    os.environ["RAY_AUTH_MODE"] = "disabled"


def start_cluster(*nodes: dict[str, float]) -> Cluster:
    """A head and further nodes with these resources, joined by this process as the driver."""
    cluster = Cluster(initialize_head=True, head_node_args={**nodes[0], "include_dashboard": False})
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
