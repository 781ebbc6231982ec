"""How many hosts a cluster holds, and what is said when it holds fewer than were asked for."""

import pytest

from raybcgd.engine.ray.placement import HostNeeds, host_count, host_needs, useful_hosts
from raybcgd.engine.settings import HostsConfig
from raybcgd.errors import ConfigError

CPU_NODE = {"CPU": 4.0}
GPU_NODE = {"CPU": 4.0, "GPU": 2.0}


def count(config: HostsConfig, *nodes: dict[str, float], cohort: int = 100, clients: int = 100) -> int:
    return host_count(config, host_needs(config, nodes), nodes, cohort, clients)


def test_without_gpus_hosts_ask_for_a_cpu() -> None:
    assert host_needs(HostsConfig(), [CPU_NODE]) == HostNeeds(num_gpus=0, num_cpus=1)
    assert count(HostsConfig(), CPU_NODE, CPU_NODE) == 8


def test_with_gpus_hosts_ask_for_their_fraction_only() -> None:
    assert host_needs(HostsConfig(), [CPU_NODE, GPU_NODE]) == HostNeeds(num_gpus=0.25, num_cpus=0)
    assert count(HostsConfig(), CPU_NODE, GPU_NODE, GPU_NODE) == 16


def test_a_fraction_does_not_span_gpus() -> None:
    assert count(HostsConfig(num_gpus=0.3), GPU_NODE) == 6
    with pytest.raises(ConfigError, match=r"hosts\.count = 7 .* holds 6: it has 1 node with 4 CPU and 2 GPU; lower"):
        count(HostsConfig(num_gpus=0.3, count=7), GPU_NODE)


def test_no_more_hosts_than_a_round_has_clients() -> None:
    assert count(HostsConfig(), GPU_NODE, cohort=3) == 3


def test_one_actor_a_client() -> None:
    assert count(HostsConfig(clients_per_host=1, num_cpus=0.1), CPU_NODE, clients=30) == 30
    with pytest.raises(ConfigError, match=r"hosts\.clients_per_host = 1 with 30 clients asks for 30 hosts"):
        count(HostsConfig(clients_per_host=1), CPU_NODE, clients=30)


def test_a_host_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no host fits: each asks for 3 GPU"):
        count(HostsConfig(num_gpus=3), GPU_NODE, GPU_NODE)
    with pytest.raises(ConfigError, match=r"no host fits: each asks for 0\.25 GPU"):
        count(HostsConfig(device="gpu"), CPU_NODE)


def test_one_and_a_half_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        HostsConfig(num_gpus=1.5)


def test_where_the_cluster_can_grow_hosts_need_not_fit_yet() -> None:
    config = HostsConfig(device="gpu", max_count=12)
    assert host_needs(config, [CPU_NODE]) == HostNeeds(num_gpus=0.25, num_cpus=0)
    assert count(config, CPU_NODE) == 12
    assert count(config, CPU_NODE, cohort=5) == 5
    assert config.start_timeout > HostsConfig().start_timeout
    assert count(HostsConfig(max_count=30, clients_per_host=1), clients=30) == 30
    with pytest.raises(ConfigError, match=r"asks for 30 hosts; raise hosts\.max_count = 12"):
        count(HostsConfig(max_count=12, clients_per_host=1), clients=30)
    with pytest.raises(ValueError, match="either count, for exactly so many hosts, or max_count"):
        HostsConfig(count=2, max_count=3)


def test_a_cohort_uses_as_many_hosts_as_its_longest_client_leaves_work_for() -> None:
    assert useful_hosts([4] * 10, stack=0) == 10
    assert useful_hosts([4] * 10, stack=4) == 3  # a host takes four clients at a time
    assert useful_hosts([100, 1, 1, 1, 1, 1], stack=0) == 2  # whoever helps, the first client takes its hundred steps
    assert useful_hosts([7], stack=8) == 1
