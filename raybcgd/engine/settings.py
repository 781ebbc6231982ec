"""`[hosts]`: the processes that train clients."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from raybcgd.section import Section

PROCESS_MB = {"cpu": 512, "gpu": 1536}
"""Memory of a host without client states, samples and models: Python, torch, Ray, a batch, the context of a GPU."""
_LAST_PORT = 65535


def host_and_port(address: str) -> tuple[str, int]:
    """Return the host and the port of a Ray cluster, such as 10.0.0.5:6379 or ray://head:10001."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal() or int(port) > _LAST_PORT:
        raise ValueError("must be HOST:PORT, such as 10.0.0.5:6379")
    return host, int(port)


class HostsConfig(Section):
    """`[hosts]`: the processes that train clients."""

    num_gpus: Annotated[float, Field(ge=0)] = 0.25
    """GPUs per host. On a cluster without GPUs, hosts use CPUs."""
    spread: bool = True
    """Use all GPUs before hosts share one: if there are fewer hosts than GPU shares, each host requests a larger share.
    false: request `num_gpus`, so that other runs can use the rest. Ray then fills one GPU of a node before the next."""
    num_cpus: Annotated[float, Field(ge=0)] | None = None
    """CPUs per host. Default: 0 with a GPU, 1 without."""
    memory_mb: Annotated[float, Field(ge=0)] | None = None
    """Memory that a host requests from Ray, so that hosts do not exhaust a node. Ray counts it without enforcing it.
    Default: an estimate from the model, the train data and the client states; none with `clients_per_host`, or if
    `count` such hosts would not fit. 0: none."""
    device: Literal["auto", "gpu", "cpu"] = "auto"
    """auto: use GPUs if the cluster has any when the run starts. gpu: wait for GPUs. cpu: ignore GPUs."""
    determinism: Literal["strict", "fast"] = "strict"
    """On accelerators only. strict: the same run on the same kind of device gives the same bits; operators without a
    deterministic implementation raise an error. fast: allow such operators, autotuned kernels, and TF32 by default."""
    tf32: bool | None = None
    """Allow TF32 in matrix products and convolutions on GPUs: inputs with 10 bits of mantissa, several times as fast.
    Default: true with determinism = "fast", otherwise false."""
    logical_gpus: bool = False
    """Accept GPUs that exist only as Ray resources: a host that finds no accelerator runs on the CPU. For tests."""
    count: Annotated[int, Field(ge=1)] | None = None
    """Number of hosts. Default: as many as fit on the cluster, at most one per sampled client, and fewer for a short
    run, because it takes some seconds to start a host."""
    max_count: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of hosts on a cluster with an autoscaler, which adds nodes for the hosts that a round can use. The
    run starts when the first host is up."""
    clients_per_host: Annotated[int, Field(ge=1)] | None = None
    """Tie this many clients to each host; 1 means one actor per client. Default: clients can move between hosts."""
    state_memory_mb: Annotated[float, Field(ge=0)] = 1024.0
    """Memory per host for cached client states. All other states are read from disk."""
    device_state_memory_mb: Annotated[float, Field(ge=0)] = 512.0
    """Memory per host on the accelerator for client states, in addition to `state_memory_mb`. States that stay there
    are not copied to it again. Ignored on CPUs."""
    data_memory_mb: Annotated[float, Field(ge=0)] = 1024.0
    """Memory per host for normalised samples. If the train data is larger, or augmented, samples are prepared again in
    each round."""
    aggregation: Literal["auto", "hosts", "coordinator"] = "auto"
    """Where uploads are added up. hosts: each host adds up the uploads of its clients and sends only the sums.
    coordinator: hosts send every upload as bytes. auto: hosts if the sums take at most 16 MiB, or no more bytes than
    the uploads; otherwise coordinator. The trained model is the same."""
    max_retries: Annotated[int, Field(ge=0)] = 5
    """Maximum number of retries of work that was lost with its host. After that, the run stops. A client whose host
    dies three times while it trains only this client counts as failed (fewer times if `max_retries` is below 3); see
    cohort.on_client_error."""
    silence_seconds: Annotated[float, Field(gt=1)] = 15.0
    """A host sends a heartbeat every second, even while it trains. If none arrives for this long, the host is replaced.
    Time in which the coordinator itself cannot run does not count."""
    start_timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    """Maximum time to wait while no host is up. Default: 300, or 1800 with `max_count`, because nodes have to start."""
    address: str | None = None
    """The Ray cluster to join. Default: RAY_ADDRESS, or a new cluster on this machine."""

    @field_validator("address")
    @classmethod
    def _with_a_port(cls, value: str | None) -> str | None:
        if value and value not in ("auto", "local"):
            host_and_port(value)
        return value

    @field_validator("num_gpus")
    @classmethod
    def _whole_above_one(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError("must be a whole number if it is above 1; use a fraction such as 0.25, or 1, 2, …")
        return value

    @field_validator("tf32")
    @classmethod
    def _not_strict(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("determinism") == "strict":
            raise ValueError('needs hosts.determinism = "fast", because "strict" computes in full precision; set it')
        return value

    @property
    def allow_tf32(self) -> bool:
        """Whether GPUs may use TF32."""
        return self.determinism == "fast" if self.tf32 is None else self.tf32

    @field_validator("max_count")
    @classmethod
    def _one_count(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("count") is not None:
            raise ValueError("conflicts with hosts.count; set count for an exact number, or max_count for a maximum")
        return value

    @property
    def start_timeout(self) -> float:
        """Seconds to wait while no host is up."""
        return self.start_timeout_seconds or (300.0 if self.max_count is None else 1800.0)
