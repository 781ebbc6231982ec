"""How many client hosts run, what each asks for, and what it may hold: settings and plain arithmetic."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from raybcgd.engine.settings import HostsConfig
from raybcgd.errors import ConfigError


class HostNeeds(NamedTuple):
    """What one host asks Ray for."""

    num_gpus: float
    num_cpus: float

    def capacity(self, node: Mapping[str, float]) -> int:
        """How many such hosts fit on a node with these resources."""
        most = [int(node.get("CPU", 0) / self.num_cpus + 1e-9)] if self.num_cpus else []
        if self.num_gpus >= 1:
            most.append(int(node.get("GPU", 0) / self.num_gpus))
        elif self.num_gpus:
            # A fraction never spans two GPUs: seven hosts of 0.3 do not fit on two of them.
            most.append(int(node.get("GPU", 0)) * int(1 / self.num_gpus + 1e-9))
        return min(most) if most else 10**6

    def words(self) -> str:
        """For messages."""
        parts = [f"{self.num_gpus:g} GPU"] if self.num_gpus else []
        parts += [f"{self.num_cpus:g} CPU"] if self.num_cpus else []
        return " and ".join(parts) or "nothing"


def host_needs(config: HostsConfig, nodes: Sequence[Mapping[str, float]]) -> HostNeeds:
    """What a host asks for on a cluster of these nodes."""
    gpus_there = any(node.get("GPU", 0) > 0 for node in nodes)
    on_gpu = config.num_gpus > 0 and (config.device == "gpu" or (config.device == "auto" and gpus_there))
    cpus = config.num_cpus if config.num_cpus is not None else (0.0 if on_gpu else 1.0)
    return HostNeeds(config.num_gpus if on_gpu else 0.0, cpus)


_SPARE = 1.25
"""Clients do not divide evenly: with a quarter more hosts than the work fills, a round still ends with its longest."""


def useful_hosts(steps: Sequence[float], stack: int) -> int:
    """How many hosts a round of clients with so many steps can use; more would wait for its longest client.

    By steps rather than by measured seconds, which a busy node or a slow first call would distort.
    """
    rows = max(stack, 1)
    return max(1, min(-(-len(steps) // rows), math.ceil(_SPARE * sum(steps) / (rows * max(steps)))))


def host_count(
    config: HostsConfig, needs: HostNeeds, nodes: Sequence[Mapping[str, float]], cohort: int, clients: int
) -> int:
    """How many hosts to run on a cluster of these nodes; a clear error where what is asked for does not fit."""
    room = sum(needs.capacity(node) for node in nodes)
    wanted = config.count
    setting = f"hosts.count = {wanted}"
    if config.clients_per_host is not None:
        wanted = -(-clients // config.clients_per_host)
        setting = f"hosts.clients_per_host = {config.clients_per_host} with {clients} clients"
    if config.max_count is not None:
        if config.clients_per_host is not None and wanted is not None and wanted > config.max_count:
            raise ConfigError(f"{setting} asks for {wanted} hosts; raise hosts.max_count = {config.max_count} to that")
        return min(config.max_count, cohort) if wanted is None else wanted  # the autoscaler makes room for them
    if room == 0:
        raise ConfigError(
            f"no host fits: each asks for {needs.words()} (hosts.num_gpus, hosts.num_cpus), and the cluster has "
            f"{_cluster(nodes)}; lower them, or set hosts.max_count where an autoscaler can add nodes"
        )
    if wanted is None:
        return min(room, cohort)
    if wanted > room:
        raise ConfigError(
            f"{setting} asks for {wanted} hosts of {needs.words()} each, but the cluster holds {room}: it has "
            f"{_cluster(nodes)}; lower hosts.num_gpus, hosts.num_cpus or the number of hosts"
        )
    return wanted


def _cluster(nodes: Sequence[Mapping[str, float]]) -> str:
    each = [f"{node.get('CPU', 0):g} CPU and {node.get('GPU', 0):g} GPU" for node in nodes]
    return f"{len(nodes)} node{'s' if len(nodes) != 1 else ''} with {', '.join(each)}"
