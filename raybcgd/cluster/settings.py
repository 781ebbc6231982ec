"""The values from which `raybcgd cluster render` writes cluster files."""

from typing import Annotated

from pydantic import Field, model_validator

from raybcgd.engine.settings import PROCESS_MB
from raybcgd.errors import ConfigError
from raybcgd.section import Section

STORE_SHARE = 0.3
"""Share of a node's memory that Ray gives to its object store by default."""
SYSTEM_GIB = 1.0
"""Memory of a node's Ray processes."""

Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,28}[a-z0-9])?$")]
Count = Annotated[int, Field(ge=1)]


class HeadValues(Section):
    """`[head]`: the node that accepts jobs and runs their coordinators. It has no GPU and no hosts."""

    cpus: Count = 2
    """CPUs."""
    memory_gib: Annotated[float, Field(ge=4)] = 8
    """Memory."""
    scratch_gib: Count = 20
    """Disk for Ray's logs and spilled objects."""


class WorkerValues(Section):
    """`[workers]`: the nodes that train. They start when a run requests hosts, and stop when they are idle."""

    max_nodes: Count = 8
    """Maximum number of nodes, which limits the cost per hour. On Kubernetes, it applies to spot and on-demand nodes
    separately."""
    gpus: Annotated[int, Field(ge=0, le=16)] = 1
    """GPUs per node. 0: train on CPUs."""
    cpus: Count = 7
    """CPUs per node. On Kubernetes, leave about one of the machine's CPUs for the system."""
    memory_gib: Annotated[float, Field(ge=2)] = 24
    """Memory per node. On Kubernetes, leave about a tenth of the machine's memory for the system."""
    scratch_gib: Count = 20
    """Disk per node for Ray's logs and spilled objects. Only on Kubernetes."""
    spot: bool = True
    """Use spot nodes, which cost less and can be reclaimed at any time."""
    on_demand: bool = True
    """Use on-demand nodes; with `spot`, only if no spot node is available."""
    idle_minutes: Annotated[float, Field(gt=0, le=60)] = 5
    """Time after which an idle node stops."""
    mps: bool | None = None
    """Start NVIDIA's Multi-Process Service on every node, so that the hosts of a GPU run concurrently. Default: true if
    `hosts.num_gpus` is below 1, because hosts then share GPUs. A node without MPS starts as usual."""


class HostValues(Section):
    """`[hosts]`: the processes that train clients. The same settings as in an experiment's config."""

    num_gpus: Annotated[float, Field(gt=0, le=1)] = 0.25
    """GPUs per host."""
    state_memory_mb: Annotated[float, Field(ge=0)] = 1024.0
    """Memory per host for cached client states."""
    memory_mb: Annotated[float, Field(gt=0)] | None = None
    """Memory that a host requests from Ray. Default: an estimate in each run. `raybcgd cluster render` then assumes
    1.5 GiB plus `state_memory_mb`; set `memory_mb` for models of more than 100 MB."""


class StorageValues(Section):
    """`[storage]`: storage for all nodes: a bucket or, on Kubernetes, a volume at /shared with the run folders."""

    bucket: Annotated[str, Field(pattern=r"^(s3|gs)://[a-z0-9]")] | None = None
    """Address for checkpoints and client states, such as s3://my-bucket/raybcgd. Default: the run folder, which only
    works on Kubernetes."""
    volume: bool = True
    """Whether all pods share a volume at /shared. false is for clusters without ReadWriteMany volumes, and needs
    `bucket`. Run folders are then lost with the head's pod; to get one back, resume the run anywhere with the same
    `checkpoint.address`. Only on Kubernetes."""
    claim: Name = "raybcgd"
    """Name of the ReadWriteMany volume claim. Only on Kubernetes."""
    create_claim: bool = True
    """Whether to write the claim. false: it already exists."""
    storage_class: str | None = None
    """Storage class of the claim; it must support ReadWriteMany. Default: the cluster's default class."""
    size_gib: Count = 100
    """Size of the claim."""


class MonitoringValues(Section):
    """`[monitoring]`: how the Prometheus operator finds the runs. Only on Kubernetes."""

    namespace: Name = "monitoring"
    """Namespace of Prometheus. The network policy admits it to the metrics ports."""
    release: str = "kube-prometheus-stack"
    """Helm release of kube-prometheus-stack. By default, it selects only objects with this `release` label."""
    alert_secret: Annotated[str, Field(pattern=r"^([a-z]([-a-z0-9]{0,28}[a-z0-9])?)?$")] = "raybcgd-alerts"
    """Secret with the key `url`, a webhook for alerts from Alertmanager. "": no webhook; alerts appear only in
    Grafana."""


class RedisValues(Section):
    """`[kubernetes.redis]`: keep Ray's control store in Redis, so that jobs survive a restart of the head's pod."""

    address: str | None = None
    """Address of a Redis server, such as redis.example:6379. Default: render a server with its own disk."""
    secret: Name = "raybcgd-redis"
    """Secret with the key `password`. Create it first."""


class JobValues(Section):
    """`[kubernetes.job]`: a run with its own cluster, which is deleted when the run ends."""

    config: str
    """Path of the experiment's config, relative to the folder of this file."""
    name: Name = "first"
    """Name of the run, and of its folder on the shared volume."""
    retries: Annotated[int, Field(ge=0)] = 2
    """Maximum number of restarts, each with a new cluster, if the run fails. It resumes from its last checkpoint. A run
    that cannot start because of its config is not restarted."""


class KubernetesValues(Section):
    """`[kubernetes]`: write objects for KubeRay."""

    image: str
    """Image built from cluster/Dockerfile, in a registry that the nodes can reach."""
    namespace: Name | None = None
    """Namespace of all objects. Default: that of the kubectl command."""
    pull_secret: str | None = None
    """Secret with the registry's credentials."""
    service_account: str | None = None
    """Service account of the pods, for access to `storage.bucket`. Default: none."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the worker nodes."""
    spot_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the spot nodes, in addition to `node_selector`."""
    tolerate: list[str] = Field(default_factory=lambda: ["nvidia.com/gpu"])
    """Keys of the taints that worker nodes may have."""
    spot_tolerate: list[str] = Field(default_factory=list)
    """Keys of the taints that spot nodes may have, in addition to `tolerate`."""
    redis: RedisValues | None = None
    job: JobValues | None = None


class AwsValues(Section):
    """`[aws]`: write a file for `ray up` on AWS."""

    region: str
    """Region."""
    zones: Annotated[list[str], Field(min_length=1)]
    """Zones of the region. If one has no spot capacity, the autoscaler tries the next."""
    head_type: str = "m6i.large"
    """Machine type of the head."""
    worker_type: str = "g5.2xlarge"
    """Machine type of the workers; it must match `[workers]`."""
    disk_gib: Annotated[int, Field(ge=100)] = 150
    """Disk per node."""
    instance_profile: str = "raybcgd"
    """Instance profile of all nodes. cluster/README.md shows how to create it."""
    security_group: str = "raybcgd"
    """Security group of all nodes. cluster/README.md shows how to create it."""
    machine_image: str = (
        "resolve:ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    )
    """AMI of all nodes. Default: the current Deep Learning Base AMI with NVIDIA's driver and Docker."""


class GcpValues(Section):
    """`[gcp]`: write a file for `ray up` on Google Cloud."""

    project: str
    """Project."""
    region: str
    """Region."""
    zone: str
    """Zone of the region."""
    head_type: str = "e2-standard-2"
    """Machine type of the head."""
    worker_type: str = "n1-standard-8"
    """Machine type of the workers; it must match `[workers]`."""
    accelerator: str = "nvidia-tesla-t4"
    """GPU type of the workers."""
    disk_gib: Annotated[int, Field(ge=100)] = 150
    """Disk per node."""
    machine_image: str = (
        "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"
    )
    """Image of all nodes, with NVIDIA's driver and Docker. Google retires image families; list the current ones with
    `gcloud compute images list --project deeplearning-platform-release --no-standard-images`."""


class Values(Section):
    """The values of a cluster. Exactly one of `kubernetes`, `aws` and `gcp` is set."""

    name: Name = "raybcgd"
    """Name of the cluster."""
    head: HeadValues = HeadValues()
    workers: WorkerValues = WorkerValues()
    hosts: HostValues = HostValues()
    storage: StorageValues = StorageValues()
    monitoring: MonitoringValues = MonitoringValues()
    kubernetes: KubernetesValues | None = None
    aws: AwsValues | None = None
    gcp: GcpValues | None = None

    @property
    def hosts_per_node(self) -> int:
        """How many hosts fit on a worker node."""
        if self.workers.gpus == 0:
            return self.workers.cpus
        return self.workers.gpus * int(1 / self.hosts.num_gpus + 1e-9)

    @property
    def host_gib(self) -> float:
        """The memory of a host, including a GPU context. A CPU host needs no context and uses that part for samples."""
        return (self.hosts.memory_mb or PROCESS_MB["gpu"] + self.hosts.state_memory_mb) / 1024

    @property
    def ray_memory_bytes(self) -> int:
        """The memory that Ray may give to hosts on a worker node, excluding its own processes and its object store."""
        return int(((1 - STORE_SHARE) * self.workers.memory_gib - SYSTEM_GIB) * 2**30)

    @property
    def mps(self) -> bool:
        """Whether worker nodes start NVIDIA's Multi-Process Service."""
        shared = self.workers.gpus > 0 and self.hosts.num_gpus < 1
        return shared if self.workers.mps is None else self.workers.mps

    @property
    def max_hosts(self) -> int:
        """How many hosts fit on `workers.max_nodes` nodes."""
        return self.workers.max_nodes * self.hosts_per_node

    @model_validator(mode="after")
    def _one_target(self) -> "Values":
        found = [name for name in ("kubernetes", "aws", "gcp") if getattr(self, name) is not None]
        if len(found) != 1:
            have = " and ".join(f"[{name}]" for name in found) or "none"
            raise ConfigError(f"the values need exactly one of [kubernetes], [aws] and [gcp], but have {have}; use one")
        return self

    @model_validator(mode="after")
    def _nodes_to_start(self) -> "Values":
        if not (self.workers.spot or self.workers.on_demand):
            raise ConfigError("workers.spot and workers.on_demand are both false: no node could start; set one of them")
        if self.kubernetes is not None and self.workers.spot and not self.kubernetes.spot_selector:
            raise ConfigError(
                "workers.spot = true needs kubernetes.spot_selector, the labels of your spot nodes; set it"
            )
        if self.kubernetes is None and self.storage.bucket is None:
            raise ConfigError("storage.bucket is not set: nodes of `ray up` share no disk; set it to s3://… or gs://…")
        if not self.storage.volume and self.storage.bucket is None:
            raise ConfigError("storage.volume = false needs storage.bucket, where checkpoints are stored; set it")
        return self

    @model_validator(mode="after")
    def _bucket_of_the_same_cloud(self) -> "Values":
        """Refuse a bucket for which the nodes of `ray up` have no credentials."""
        bucket = self.storage.bucket or ""
        for cloud, scheme in (("aws", "s3://"), ("gcp", "gs://")):
            if getattr(self, cloud) is not None and not bucket.startswith(scheme):
                raise ConfigError(
                    f'storage.bucket = "{bucket}": nodes of [{cloud}] have no access to it; use {scheme}…'
                )
        return self

    @model_validator(mode="after")
    def _memory_fits(self) -> "Values":
        """Refuse nodes that would run out of memory when their hosts' caches are full."""
        per_host = self.host_gib
        needed = (self.hosts_per_node * per_host + SYSTEM_GIB) / (1 - STORE_SHARE)
        if needed > self.workers.memory_gib:
            raise ConfigError(
                f"workers.memory_gib = {self.workers.memory_gib:g} is less than the {needed:.1f} GiB that "
                f"{self.hosts_per_node} hosts ({per_host:g} GiB each) and Ray need; raise it, or lower "
                + ("hosts.state_memory_mb" if self.hosts.memory_mb is None else "hosts.memory_mb")
                + (", or raise hosts.num_gpus" if self.workers.gpus else ", or lower workers.cpus")
            )
        return self
