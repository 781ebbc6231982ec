"""`[hosts]`: the processes that train clients."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from raybcgd.section import Section


class HostsConfig(Section):
    """`[hosts]`: the processes that train clients."""

    num_gpus: Annotated[float, Field(ge=0)] = 0.25
    """The fraction of a GPU that a host asks for. Where the cluster has no GPU, hosts ask for a CPU instead. Ray fills
    one GPU of a node before it takes the next: with few hosts on many GPUs, ask for more."""
    num_cpus: Annotated[float, Field(ge=0)] | None = None
    """The CPUs that a host asks for; unless given, 1 for a host without a GPU and 0 for one with."""
    device: Literal["auto", "gpu", "cpu"] = "auto"
    """`auto` uses GPUs if the cluster has any at the start, `gpu` waits for them, `cpu` leaves them alone."""
    count: Annotated[int, Field(ge=1)] | None = None
    """Hosts to run; as many as the cluster can hold unless given, but not more than a round has clients."""
    max_count: Annotated[int, Field(ge=1)] | None = None
    """For a cluster that grows: ask for as many hosts as a round can use, up to this, and let the autoscaler bring
    nodes for them. The run starts with the first host and takes the others as they come."""
    clients_per_host: Annotated[int, Field(ge=1)] | None = None
    """Clients homed on a host; 1 gives every client an actor of its own."""
    state_memory_mb: Annotated[float, Field(ge=0)] = 2048.0
    """Client states that a host keeps in memory; the others stay on disk."""
    max_retries: Annotated[int, Field(ge=0)] = 5
    """How often work that was lost with its host is done again before the run stops."""
    start_timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    """How long the run waits for a host when it has none; unless given, 300, or with `max_count`, where a node must be
    found, started and set up first, 1800."""
    address: str | None = None
    """The Ray cluster to join; unless given, that of RAY_ADDRESS, else a new one on this machine."""

    @field_validator("num_gpus")
    @classmethod
    def _whole_above_one(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError("above 1 it must be a whole number of GPUs; use a fraction such as 0.25, or 1, 2, …")
        return value

    @field_validator("max_count")
    @classmethod
    def _one_count(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("count") is not None:
            raise ValueError("use either count, for exactly so many hosts, or max_count, for up to so many")
        return value

    @property
    def start_timeout(self) -> float:
        """Seconds that the run waits for a host when it has none."""
        return self.start_timeout_seconds or (300.0 if self.max_count is None else 1800.0)
