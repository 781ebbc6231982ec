"""The pods of a cluster on Kubernetes. All of them satisfy the restricted pod security standard."""

from typing import Any, NamedTuple

from raybcgd.cluster.settings import KubernetesValues, Values
from raybcgd.cluster.versions import RAY_VERSION

Object = dict[str, Any]

LABEL = "app.kubernetes.io/name"
PORTS = {
    "gcs": 6379,
    "dashboard": 8265,
    "metrics": 8080,
    "autoscaler": 44217,
    "dash-metrics": 44227,
    "runs": 9464,
    "redis": 6379,
}
"""Ports by name: Ray's own, the one at which the sidecar serves the metrics of a pod's runs, and that of Redis."""
DISCOVERY = "/tmp/raybcgd-discovery"
SHARED = "/shared"
JOB_CONFIG = "/etc/raybcgd"
_POD_SECURITY: Object = {
    "runAsNonRoot": True,
    "runAsUser": 1000,  # the user `ray` of Ray's images
    "runAsGroup": 100,
    "fsGroup": 100,
    "fsGroupChangePolicy": "OnRootMismatch",  # the default changes the owner of every file on every start
    "seccompProfile": {"type": "RuntimeDefault"},
}


def restricted() -> Object:
    """Return the security context of every container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def resources(cpu: str, memory: str, gpus: int = 0) -> Object:
    """Return equal requests and limits."""
    amounts = {"cpu": cpu, "memory": memory, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {"requests": dict(amounts), "limits": dict(amounts)}


class Nodes(NamedTuple):
    """Where a pod may run."""

    selector: dict[str, str]
    tolerate: list[str]


class Pods:
    """Builds the pods of one cluster."""

    def __init__(self, values: Values, kubernetes: KubernetesValues) -> None:
        self._values, self._kubernetes = values, kubernetes
        self.labels = {LABEL: values.name}

    def cluster_spec(self, with_job: bool = False) -> Object:
        """Return the spec of a RayCluster. With a job, its pods also mount the job's config."""
        values, workers = self._values, self._values.workers
        spec: Object = {
            "rayVersion": RAY_VERSION,
            "authOptions": {"mode": "token"},
            "enableInTreeAutoscaling": True,
            "autoscalerOptions": {
                "version": "v2",
                "upscalingMode": "Default",
                "idleTimeoutSeconds": round(60 * workers.idle_minutes),
                "resources": resources("500m", "1Gi"),
                "securityContext": restricted(),
            },
        }
        if self._kubernetes.redis is not None:
            redis = self._kubernetes.redis
            password = {"valueFrom": {"secretKeyRef": {"name": redis.secret, "key": "password"}}}
            address = redis.address or f"{values.name}-redis:{PORTS['redis']}"
            spec["gcsFaultToleranceOptions"] = {"redisAddress": address, "redisPassword": password}
        spec["headGroupSpec"] = {
            "serviceType": "ClusterIP",
            # The operator checks the head's health and submits jobs to it. The network policy limits who else connects.
            "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
            "template": self._template(self._head(), Nodes({}, []), values.head.scratch_gib, with_job),
        }
        spec["workerGroupSpecs"] = self._groups(with_job)
        return spec

    def _groups(self, with_job: bool) -> list[Object]:
        """Return the worker groups: spot first, on demand if there is no spot node."""
        values, workers, kubernetes = self._values, self._values.workers, self._kubernetes
        kind = "gpu" if workers.gpus else "cpu"
        plain = Nodes(kubernetes.node_selector, kubernetes.tolerate if workers.gpus else [])
        spot = Nodes({**plain.selector, **kubernetes.spot_selector}, [*plain.tolerate, *kubernetes.spot_tolerate])
        groups = [(f"{kind}-spot", 10, spot)] if workers.spot else []
        groups += [(f"{kind}-on-demand", 0, plain)] if workers.on_demand else []
        return [
            {
                "groupName": name,
                "priority": priority,
                "replicas": 0,
                "minReplicas": 0,
                "maxReplicas": workers.max_nodes,
                "rayStartParams": {"memory": str(values.ray_memory_bytes)},  # the default is all memory of the pod
                "template": self._template(self._worker(), nodes, workers.scratch_gib, with_job),
            }
            for name, priority, nodes in groups
        ]

    def _head(self) -> Object:
        head = self._values.head
        ports = ("gcs", "dashboard", "metrics", "autoscaler", "dash-metrics")
        return self._ray("ray-head", ports, resources(str(head.cpus), f"{head.memory_gib:g}Gi"))

    def _worker(self) -> Object:
        workers = self._values.workers
        needs = resources(str(workers.cpus), f"{workers.memory_gib:g}Gi", workers.gpus)
        container = self._ray("ray-worker", ("metrics",), needs)
        if self._values.mps:
            container["env"] = [
                {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/tmp/nvidia-mps"},
                {"name": "CUDA_MPS_LOG_DIRECTORY", "value": "/tmp/nvidia-mps-log"},
            ]
            container["command"] = ["nvidia-cuda-mps-control -d || true"]  # KubeRay runs it before `ray start`
        return container

    def _ray(self, name: str, ports: tuple[str, ...], needs: Object) -> Object:
        return {
            "name": name,
            "image": self._kubernetes.image,
            "ports": [{"name": port, "containerPort": PORTS[port]} for port in ports],
            "resources": needs,
            "securityContext": restricted(),
        }

    def _metrics(self) -> Object:
        """Return the sidecar that serves the metrics of the pod's runs, whose ports change from run to run."""
        return {
            "name": "metrics",
            "image": self._kubernetes.image,
            "command": ["python", "-m", "raybcgd.record.collector", "--host=0.0.0.0", f"--port={PORTS['runs']}"],
            "ports": [{"name": "runs", "containerPort": PORTS["runs"]}],
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}},
            "securityContext": restricted(),
            "volumeMounts": [{"name": "discovery", "mountPath": DISCOVERY}],
        }

    def _template(self, ray: Object, nodes: Nodes, scratch_gib: int, with_job: bool) -> Object:
        storage, scratch = self._values.storage, {"emptyDir": {"sizeLimit": f"{scratch_gib}Gi"}}
        shared = {"persistentVolumeClaim": {"claimName": storage.claim}} if storage.volume else scratch
        volumes: list[tuple[str, str, Object]] = [
            ("ray", "/tmp/ray", scratch),
            ("discovery", DISCOVERY, {"emptyDir": {"sizeLimit": "16Mi"}}),
            ("shared", SHARED, shared),
        ]
        if with_job:
            volumes.append(("job", JOB_CONFIG, {"configMap": {"name": self.job_name}}))
        mounts = [{"name": name, "mountPath": path} for name, path, _ in volumes]
        containers = [{**ray, "volumeMounts": mounts}, self._metrics()]
        spec: Object = {
            "restartPolicy": "Never",  # KubeRay replaces pods; autoscaler v2 requires that containers do not restart
            "automountServiceAccountToken": ray["name"] == "ray-head",  # for the autoscaler
            "securityContext": _POD_SECURITY,
            "containers": containers,
            "volumes": [{"name": name, **source} for name, _, source in volumes],
        }
        if nodes.selector:
            spec["nodeSelector"] = nodes.selector
        if nodes.tolerate:
            spec["tolerations"] = [{"key": key, "operator": "Exists"} for key in nodes.tolerate]
        return {"metadata": {"labels": self.labels}, "spec": {**self._identity(), **spec}}

    def _identity(self) -> Object:
        """Return the settings for access to the registry and the bucket."""
        found: Object = {}
        if self._kubernetes.pull_secret:
            found["imagePullSecrets"] = [{"name": self._kubernetes.pull_secret}]
        if self._kubernetes.service_account:
            found["serviceAccountName"] = self._kubernetes.service_account
        return found

    @property
    def job_name(self) -> str:
        """Name of the RayJob and of the ConfigMap with its config."""
        assert self._kubernetes.job is not None
        return f"{self._values.name}-{self._kubernetes.job.name}"

    def submitter(self) -> Object:
        """Return the pod that submits a RayJob."""
        container = {
            "name": "submitter",
            "image": self._kubernetes.image,
            "resources": resources("500m", "1Gi"),
            "securityContext": restricted(),
        }
        spec = {
            **self._identity(),
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": _POD_SECURITY,
            "containers": [container],
        }
        return {"metadata": {"labels": self.labels}, "spec": spec}  # the label lets the network policy admit it
