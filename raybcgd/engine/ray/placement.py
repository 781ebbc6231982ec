"""The number of client hosts, and the resources of each."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from raybcgd.algorithms.contract import declared
from raybcgd.engine.demand import Demand
from raybcgd.engine.settings import HostsConfig
from raybcgd.errors import ConfigError
from raybcgd.messages import ClientTask
from raybcgd.problem import Problem

_SPARE_HOSTS = 1.25
"""Clients do not divide evenly among hosts. With 25 % more hosts, a round takes no longer than its slowest client."""
_SMALL_SUMS_BYTES = 2**24
"""Hosts add up uploads if all sums together are at most this large, whatever the size of the uploads."""
PIECEWISE_BYTES = 2**26
"""Partial sums above this size are combined per node and collected in pieces when a round ends. Smaller ones
are returned by each host's last call."""


class HostNeeds(NamedTuple):
    """The resources of one host."""

    num_gpus: float
    num_cpus: float
    memory_bytes: int = 0

    def capacity(self, node: Mapping[str, float]) -> int:
        """Return how many such hosts fit on a node with these resources."""
        limits = [int(node.get("CPU", 0) / self.num_cpus + 1e-9)] if self.num_cpus else []
        if self.num_gpus >= 1:
            limits.append(int(node.get("GPU", 0) / self.num_gpus))
        elif self.num_gpus:
            # A fraction never spans two GPUs: five hosts of 0.4 do not fit on two GPUs.
            limits.append(int(node.get("GPU", 0)) * int(1 / self.num_gpus + 1e-9))
        if self.memory_bytes and "memory" in node:
            limits.append(int(node["memory"] // self.memory_bytes))
        return min(limits, default=10**6)

    def describe(self) -> str:
        """Return the needs as text for messages."""
        amounts = [f"{amount:g} {unit}" for amount, unit in ((self.num_gpus, "GPU"), (self.num_cpus, "CPU")) if amount]
        amounts += [f"{self.memory_bytes / 2**30:.1f} GiB of memory"] if self.memory_bytes else []
        return " and ".join(amounts) or "nothing"


def host_needs(config: HostsConfig, nodes: Sequence[Mapping[str, float]], demand: Demand | None = None) -> HostNeeds:
    """Return the resources that a host requests. Without `demand`, it requests memory only if the config sets it."""
    has_gpus = any(node.get("GPU", 0) > 0 for node in nodes)
    on_gpu = config.num_gpus > 0 and (config.device == "gpu" or (config.device == "auto" and has_gpus))
    cpus = config.num_cpus if config.num_cpus is not None else (0.0 if on_gpu else 1.0)
    needs = HostNeeds(config.num_gpus if on_gpu else 0.0, cpus)
    if config.memory_mb is not None:
        return needs._replace(memory_bytes=int(config.memory_mb * 2**20))
    if demand is None or config.clients_per_host is not None:
        return needs
    estimated = needs._replace(memory_bytes=demand.gpu_bytes if on_gpu else demand.cpu_bytes)
    # An estimate must not keep a run from starting. An autoscaler needs it to decide how many nodes to start.
    fits = sum(map(estimated.capacity, nodes)) >= (config.count or 1)
    return estimated if fits or config.max_count is not None else needs


def spread(needs: HostNeeds, nodes: Sequence[Mapping[str, float]], hosts: int) -> HostNeeds:
    """Return the needs with the largest share of a GPU for which this many hosts fit on these nodes.

    Otherwise, Ray would put as many hosts as fit on one GPU before it uses the next.
    """
    if not 0 < needs.num_gpus < 1:
        return needs
    for per_gpu in range(1, int(1 / needs.num_gpus + 1e-9)):
        larger = needs._replace(num_gpus=math.floor(1e4 / per_gpu) / 1e4)  # Ray counts in units of 0.0001
        if sum(larger.capacity(node) for node in nodes) >= hosts:
            return larger
    return needs


def useful_hosts(steps: Sequence[float], stack: int) -> int:
    """Return how many hosts a round can use, given its clients' steps. More would only wait for the slowest client."""
    rows = max(stack, 1)
    # Based on steps: a busy node or a slow first call would distort measured times.
    return max(1, min(-(-len(steps) // rows), math.ceil(_SPARE_HOSTS * sum(steps) / (rows * max(steps)))))


def sums_at_hosts(problem: Problem, tasks: Sequence[ClientTask], nodes: Sequence[str]) -> tuple[bool, int]:
    """Return whether the hosts, on these nodes, add up the uploads of these tasks, and the bytes of a host's sums."""
    wire, terms = problem.wire, declared(problem.algorithm.terms_type)
    sums = 8 * problem.layout.size * sum(field.per_coordinate for field in terms)  # in float64
    uploads = sum(count * wire.uncoded_bytes(block) for block, count in Counter(task.block for task in tasks).items())
    wanted = problem.config.hosts.aggregation
    combined = len(set(nodes)) > 1 and sums > PIECEWISE_BYTES and problem.config.cohort.deadline_seconds is None
    sent = len(set(nodes)) if combined else len(nodes)
    fewer_bytes = sent * sums <= max(uploads, _SMALL_SUMS_BYTES)
    return wanted == "hosts" or (wanted == "auto" and fewer_bytes), sums


def host_count(
    config: HostsConfig, needs: HostNeeds, nodes: Sequence[Mapping[str, float]], useful: int, clients: int
) -> int:
    """Return the number of hosts to run on a cluster of these nodes, or raise an error if they do not fit.

    `useful` is how many the run can use.
    """
    wanted, setting = config.count, f"hosts.count = {config.count}"
    if config.clients_per_host is not None:
        wanted = -(-clients // config.clients_per_host)
        setting = f"hosts.clients_per_host = {config.clients_per_host} with {clients} clients"
    if config.max_count is not None:
        if wanted is not None and wanted > config.max_count:
            raise ConfigError(
                f"{setting} requires {wanted} hosts, more than hosts.max_count = {config.max_count}; raise "
                f"hosts.max_count to at least {wanted}, or raise hosts.clients_per_host"
            )
        return min(config.max_count, useful) if wanted is None else wanted  # the autoscaler adds the nodes
    room = sum(needs.capacity(node) for node in nodes)
    if room == 0:
        raise ConfigError(
            f"no host fits: each requests {needs.describe()}, and the cluster has {_describe_nodes(nodes)}; lower "
            "hosts.num_gpus, hosts.num_cpus or hosts.memory_mb, or set hosts.max_count if an autoscaler can add nodes"
        )
    if wanted is not None and wanted > room:
        raise ConfigError(
            f"{setting} requires {wanted} hosts of {needs.describe()} each, but only {room} fit: the cluster has "
            f"{_describe_nodes(nodes)}; lower hosts.num_gpus, hosts.num_cpus, hosts.memory_mb or the number of hosts"
        )
    return min(room, useful) if wanted is None else wanted


def describe_resources(resources: Mapping[str, float]) -> str:
    """Return the CPUs, GPUs and memory of a node or a cluster as text for messages."""
    found = f"{resources.get('CPU', 0):g} CPU and {resources.get('GPU', 0):g} GPU"
    return found + (f" and {resources['memory'] / 2**30:.1f} GiB" if "memory" in resources else "")


def _describe_nodes(nodes: Sequence[Mapping[str, float]]) -> str:
    return f"{len(nodes)} node{'s' if len(nodes) != 1 else ''} with {', '.join(map(describe_resources, nodes))}"
