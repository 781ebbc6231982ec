"""The number of hosts on a cluster, and the errors if the configured hosts do not fit."""

import pytest

from raybcgd.engine.demand import Demand
from raybcgd.engine.ray.placement import (
    PIECEWISE_BYTES,
    HostNeeds,
    host_count,
    host_needs,
    spread,
    sums_at_hosts,
    useful_hosts,
)
from raybcgd.engine.settings import HostsConfig
from raybcgd.errors import ConfigError
from raybcgd.messages import ClientTask
from raybcgd.problem import prepare
from tests.conftest import small

CPU_NODE = {"CPU": 4.0}
GPU_NODE = {"CPU": 4.0, "GPU": 2.0}


GIB = 2**30
DEMAND = Demand(seconds=1e9, cpu_bytes=GIB, gpu_bytes=2 * GIB)


def count(
    config: HostsConfig, *nodes: dict[str, float], cohort: int = 100, clients: int = 100, demand: Demand | None = None
) -> int:
    return host_count(config, host_needs(config, nodes, demand), nodes, cohort, clients)


def test_without_gpus_each_host_requests_a_cpu() -> None:
    assert host_needs(HostsConfig(), [CPU_NODE]) == HostNeeds(num_gpus=0, num_cpus=1)
    assert count(HostsConfig(), CPU_NODE, CPU_NODE) == 8


def test_with_gpus_each_host_requests_only_its_fraction() -> None:
    assert host_needs(HostsConfig(), [CPU_NODE, GPU_NODE]) == HostNeeds(num_gpus=0.25, num_cpus=0)
    assert count(HostsConfig(), CPU_NODE, GPU_NODE, GPU_NODE) == 16


def test_a_fraction_does_not_span_gpus() -> None:
    assert count(HostsConfig(num_gpus=0.3), GPU_NODE) == 6
    with pytest.raises(
        ConfigError, match=r"hosts\.count = 7 .* only 6 fit: the cluster has 1 node with 4 CPU and 2 GPU; lower"
    ):
        count(HostsConfig(num_gpus=0.3, count=7), GPU_NODE)


@pytest.mark.parametrize(
    ("share", "hosts", "expected"),
    [
        (0.25, 1, 1.0),
        (0.25, 4, 1.0),  # two nodes with two GPUs each
        (0.25, 5, 0.5),
        (0.25, 10, 0.3333),
        (0.25, 16, 0.25),
        (0.3, 12, 0.3),
        (1.0, 2, 1.0),
        (0.0, 2, 0.0),
    ],
)
def test_hosts_use_all_gpus_before_they_share_one(share: float, hosts: int, expected: float) -> None:
    needs, nodes = HostNeeds(share, 0), [GPU_NODE, GPU_NODE, CPU_NODE]
    larger = spread(needs, nodes, hosts)
    assert larger.num_gpus == expected
    assert sum(larger.capacity(node) for node in nodes) >= hosts


def test_there_are_no_more_hosts_than_clients_per_round() -> None:
    assert count(HostsConfig(), GPU_NODE, cohort=3) == 3


def test_hosts_request_the_memory_that_they_need() -> None:
    node = {**GPU_NODE, "memory": 6 * GIB}
    assert host_needs(HostsConfig(), [node], DEMAND).memory_bytes == 2 * GIB
    assert host_needs(HostsConfig(device="cpu"), [node], DEMAND).memory_bytes == GIB
    assert count(HostsConfig(), node, node, demand=DEMAND) == 6, "8 by their GPUs"
    assert host_needs(HostsConfig(memory_mb=512), [node], DEMAND).memory_bytes == GIB / 2
    with pytest.raises(
        ConfigError, match=r"no host fits: each requests 0\.25 GPU and 7\.0 GiB of memory, .* 6\.0 GiB;"
    ):
        count(HostsConfig(memory_mb=7 * 1024), node)


def test_an_estimate_of_memory_does_not_keep_a_run_from_starting() -> None:
    small = {**CPU_NODE, "memory": GIB / 2}
    assert count(HostsConfig(), small, demand=DEMAND) == 4
    assert count(HostsConfig(count=4), {**CPU_NODE, "memory": 2 * GIB}, demand=DEMAND) == 4
    assert host_needs(HostsConfig(clients_per_host=1), [CPU_NODE], DEMAND).memory_bytes == 0
    assert host_needs(HostsConfig(max_count=4), [small], DEMAND).memory_bytes == GIB, "nodes will come"


def test_one_actor_per_client() -> None:
    assert count(HostsConfig(clients_per_host=1, num_cpus=0.1), CPU_NODE, clients=30) == 30
    with pytest.raises(ConfigError, match=r"hosts\.clients_per_host = 1 with 30 clients requires 30 hosts"):
        count(HostsConfig(clients_per_host=1), CPU_NODE, clients=30)


def test_a_host_that_fits_on_no_node_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no host fits: each requests 3 GPU"):
        count(HostsConfig(num_gpus=3), GPU_NODE, GPU_NODE)
    with pytest.raises(ConfigError, match=r"no host fits: each requests 0\.25 GPU"):
        count(HostsConfig(device="gpu"), CPU_NODE)


def test_one_and_a_half_gpus_are_an_error() -> None:
    with pytest.raises(ValueError, match="whole number"):
        HostsConfig(num_gpus=1.5)


def test_with_max_count_hosts_may_exceed_the_current_capacity() -> None:
    config = HostsConfig(device="gpu", max_count=12)
    assert host_needs(config, [CPU_NODE]) == HostNeeds(num_gpus=0.25, num_cpus=0)
    assert count(config, CPU_NODE) == 12
    assert count(config, CPU_NODE, cohort=5) == 5
    assert config.start_timeout > HostsConfig().start_timeout
    assert count(HostsConfig(max_count=30, clients_per_host=1), clients=30) == 30
    with pytest.raises(ConfigError, match=r"requires 30 hosts, more than hosts\.max_count = 12; raise .* at least 30"):
        count(HostsConfig(max_count=12, clients_per_host=1), clients=30)
    with pytest.raises(ValueError, match=r"set count for an exact number, or max_count for a maximum"):
        HostsConfig(count=2, max_count=3)


def test_useful_hosts_are_limited_by_the_longest_client_and_by_the_stack() -> None:
    assert useful_hosts([4] * 10, stack=0) == 10
    assert useful_hosts([4] * 10, stack=4) == 3  # a host trains four clients at a time
    assert useful_hosts([100, 1, 1, 1, 1, 1], stack=0) == 2  # the first client takes 100 steps in any case
    assert useful_hosts([7], stack=8) == 1


def test_large_sums_count_once_per_node_because_nodes_combine_them() -> None:
    large = {"name": "mlp", "options": {"hidden": [3000, 3000, 3000]}}
    problem, _ = prepare(small(model=large, algorithm={"name": "fedavg", "lr": 0.1}))
    tasks = [ClientTask(client, None) for client in range(20)]
    chosen, sums_bytes = sums_at_hosts(problem, tasks, [f"node {number % 4}" for number in range(16)])
    assert sums_bytes == 8 * problem.layout.size > PIECEWISE_BYTES
    assert chosen, "4 sums of 8 bytes per coordinate are less than 20 uploads of 4 bytes"
    chosen, _ = sums_at_hosts(problem, tasks, [f"node {number}" for number in range(16)])
    assert not chosen, "16 sums are more"
    late, _ = prepare(
        small(model=large, algorithm={"name": "fedavg", "lr": 0.1}, engine="ray", cohort={"deadline_seconds": 9.0})
    )
    chosen, _ = sums_at_hosts(late, tasks, [f"node {number % 4}" for number in range(16)])
    assert not chosen, "with a deadline, every host sends its own sums"
