"""`[hosts]`: the processes that train clients."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from raybcgd.section import Section


class HostsConfig(Section):
    """`[hosts]`: the processes that train clients."""

    num_gpus: Annotated[float, Field(ge=0)] = 0.25
    """GPUs per host. On a cluster without GPUs, hosts use CPUs. Ray fills one GPU of a node before the next: with few
    hosts and many GPUs, raise it."""
    num_cpus: Annotated[float, Field(ge=0)] | None = None
    """CPUs per host. Default: 0 with a GPU, 1 without."""
    device: Literal["auto", "gpu", "cpu"] = "auto"
    """auto: GPUs if the cluster has any at the start. gpu: wait for GPUs. cpu: ignore GPUs."""
    count: Annotated[int, Field(ge=1)] | None = None
    """Number of hosts. Default: as many as fit on the cluster, at most one per client of a round."""
    max_count: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of hosts on a cluster with an autoscaler, which adds nodes for the hosts that a round can use. The
    run starts with the first host."""
    clients_per_host: Annotated[int, Field(ge=1)] | None = None
    """Clients homed on each host; 1 gives every client its own actor. Default: clients are spread over all hosts."""
    state_memory_mb: Annotated[float, Field(ge=0)] = 2048.0
    """Memory per host to cache client states. The other states are read from disk."""
    max_retries: Annotated[int, Field(ge=0)] = 5
    """Retries of work that was lost with its host, before the run stops."""
    start_timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    """How long to wait while no host is up. Default: 300, or 1800 with `max_count`, because nodes have to start."""
    address: str | None = None
    """The Ray cluster to join. Default: RAY_ADDRESS, or a new cluster on this machine."""

    @field_validator("num_gpus")
    @classmethod
    def _whole_above_one(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError("above 1 it must be a whole number; use a fraction such as 0.25, or 1, 2, …")
        return value

    @field_validator("max_count")
    @classmethod
    def _one_count(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("count") is not None:
            raise ValueError("excludes hosts.count; set count for an exact number of hosts, or max_count for a limit")
        return value

    @property
    def start_timeout(self) -> float:
        """Seconds to wait while no host is up."""
        return self.start_timeout_seconds or (300.0 if self.max_count is None else 1800.0)
