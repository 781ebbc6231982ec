"""Kubernetes objects: the Ray cluster, an optional job, storage, Redis and network rules."""

import shlex

import tomli_w

from raybcgd.cluster.monitoring import monitoring_objects
from raybcgd.cluster.pods import JOB_CONFIG, LABEL, PORTS, SHARED, Object, Pods, resources, restricted
from raybcgd.cluster.settings import JobValues, KubernetesValues, Values
from raybcgd.config.files import load_config, read_tables

METRICS_PORTS = ("metrics", "runs", "autoscaler", "dash-metrics")
_REDIS_IMAGE = "redis:7.4.2"


def kubernetes_objects(values: Values, kubernetes: KubernetesValues) -> dict[str, list[Object]]:
    """Return the objects by file name."""
    pods = Pods(values, kubernetes)
    made: dict[str, list[Object]] = {
        "raycluster.yaml": [_object("ray.io/v1", "RayCluster", values.name, pods.labels, spec=pods.cluster_spec())],
        "networkpolicy.yaml": [_network_policy(values, pods)],
    }
    if values.storage.volume and values.storage.create_claim:
        made["storage.yaml"] = [_claim(values, pods)]
    if kubernetes.redis is not None and kubernetes.redis.address is None:
        made["redis.yaml"] = _redis(values, kubernetes)
    if kubernetes.job is not None:
        made["job/rayjob.yaml"] = _job(values, kubernetes.job, pods)
    made |= {f"monitoring/{name}": objects for name, objects in monitoring_objects(values.monitoring, values).items()}
    if kubernetes.namespace is not None:
        for objects in made.values():
            for one in objects:
                one["metadata"]["namespace"] = kubernetes.namespace
    return made


def _object(api: str, kind: str, name: str, labels: dict[str, str], **rest: Object) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": labels}, **rest}


def _network_policy(values: Values, pods: Pods) -> Object:
    """Admit the cluster's own pods, the KubeRay operator and, for metrics, Prometheus. Deny everything else."""
    own = {"podSelector": {"matchLabels": pods.labels}}
    operator = {"namespaceSelector": {}, "podSelector": {"matchLabels": {LABEL: "kuberay-operator"}}}
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": values.monitoring.namespace}}}
    ingress = [
        {"from": [own]},
        {"from": [operator], "ports": [_port("dashboard")]},
        {"from": [prometheus], "ports": [_port(name) for name in METRICS_PORTS]},
    ]
    spec = {**own, "policyTypes": ["Ingress"], "ingress": ingress}
    return _object("networking.k8s.io/v1", "NetworkPolicy", values.name, pods.labels, spec=spec)


def _port(name: str) -> Object:
    return {"protocol": "TCP", "port": PORTS[name]}


def _claim(values: Values, pods: Pods) -> Object:
    storage = values.storage
    spec: Object = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": f"{storage.size_gib}Gi"}},
    }
    if storage.storage_class is not None:
        spec["storageClassName"] = storage.storage_class
    return _object("v1", "PersistentVolumeClaim", storage.claim, pods.labels, spec=spec)


def _redis(values: Values, kubernetes: KubernetesValues) -> list[Object]:
    """Return a Redis server with its own disk. Only the cluster's pods can connect."""
    assert kubernetes.redis is not None
    name = f"{values.name}-redis"
    labels = {LABEL: name}
    password = {"secretKeyRef": {"name": kubernetes.redis.secret, "key": "password"}}
    container: Object = {
        "name": "redis",
        "image": _REDIS_IMAGE,
        "command": ["sh", "-c", 'exec redis-server --appendonly yes --dir /data --requirepass "$REDIS_PASSWORD"'],
        "env": [{"name": "REDIS_PASSWORD", "valueFrom": password}],
        "ports": [{"name": "redis", "containerPort": PORTS["redis"]}],
        "resources": resources("250m", "512Mi"),
        "securityContext": restricted(),
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    user = {"runAsUser": 999, "fsGroup": 999, "fsGroupChangePolicy": "OnRootMismatch"}  # the user of Redis' image
    pod = {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, **user},
        "containers": [container],
    }
    disk = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}},
    }
    stateful = {
        "serviceName": name,
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
        "volumeClaimTemplates": [disk],
    }
    service = {"selector": labels, "ports": [{"name": "redis", "port": PORTS["redis"]}]}
    ingress = [{"from": [{"podSelector": {"matchLabels": {LABEL: values.name}}}], "ports": [_port("redis")]}]
    policy = {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"], "ingress": ingress}
    return [
        _object("apps/v1", "StatefulSet", name, labels, spec=stateful),
        _object("v1", "Service", name, labels, spec=service),
        _object("networking.k8s.io/v1", "NetworkPolicy", name, labels, spec=policy),
    ]


def _job(values: Values, job: JobValues, pods: Pods) -> list[Object]:
    """Return a RayJob, and a ConfigMap with its config. A wrong config is refused here, not on the cluster."""
    settings = run_settings(values, job.name)
    load_config(job.config, settings)
    out = f"{SHARED}/runs/{job.name}"
    words = ["python", "-m", "raybcgd", "train", f"{JOB_CONFIG}/config.toml", "--out", out, "--resume", "auto"]
    words += ["--on-config-error", "stop-job"]  # KubeRay retries a failed job, but not a stopped one
    for setting in settings:
        words += ["--set", setting]
    spec: Object = {
        "entrypoint": shlex.join(words),
        "submissionMode": "K8sJobMode",
        "backoffLimit": job.retries,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 300,
        "submitterPodTemplate": pods.submitter(),
        "rayClusterSpec": pods.cluster_spec(with_job=True),
    }
    config = tomli_w.dumps(read_tables(job.config))
    return [
        _object("v1", "ConfigMap", pods.job_name, pods.labels, data={"config.toml": config}),
        _object("ray.io/v1", "RayJob", pods.job_name, pods.labels, spec=spec),
    ]


def run_settings(values: Values, run: str) -> list[str]:
    """Return the settings that a run with this name needs to use this cluster."""
    bucket = values.storage.bucket
    on_gpu = [f"hosts.num_gpus={values.hosts.num_gpus:g}"] if values.workers.gpus else []
    return [
        f"hosts.device={'gpu' if values.workers.gpus else 'cpu'}",
        *on_gpu,
        f"hosts.max_count={values.max_hosts}",
        f"hosts.state_memory_mb={values.hosts.state_memory_mb:g}",
        *([f"hosts.memory_mb={values.hosts.memory_mb:g}"] if values.hosts.memory_mb is not None else []),
        *([f"checkpoint.address={bucket}/{run}"] if bucket is not None else []),
    ]
