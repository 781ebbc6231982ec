"""The cluster files in the repository, and checks for them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
PROFILES = ("aws-spot", "google-cloud", "no-gpu", "on-premises")
RAY_UP = ("aws", "gcp")
SCHEMAS = {
    name: json.loads((Path(__file__).parent / f"{name}-schema.json").read_text())
    for name in ("kuberay", "prometheus-operator")
}
"""The custom resource definitions of the operators, of the version that each states."""

Object = dict[str, Any]


def ray_up(name: str) -> Object:
    """Return a file for `ray up`."""
    config: Object = yaml.safe_load((CLUSTER / "ray-up" / name / "cluster.yaml").read_text())
    return config


def objects(profile: str) -> dict[str, Object]:
    """Return all objects of a profile, by kind and name."""
    found = {}
    for path in sorted((CLUSTER / "kubernetes" / profile).rglob("*.yaml")):
        for one in yaml.safe_load_all(path.read_text()):
            found[f"{one['kind']}/{one['metadata']['name']}"] = one
    return found


def cluster_spec(profile: str) -> Object:
    """Return the spec of a profile's RayCluster."""
    spec: Object = objects(profile)["RayCluster/raybcgd"]["spec"]
    return spec


def check_custom(resource: Object) -> None:
    """Validate a resource of KubeRay or of the Prometheus operator against its schema."""
    (found,) = [schema for schema in SCHEMAS.values() if resource["kind"] in schema["kinds"]]
    schema = {**found["kinds"][resource["kind"]], "$defs": found["$defs"]}
    jsonschema.Draft202012Validator(schema).validate(resource)


def pods(profile: str) -> Iterator[Object]:
    """Yield the spec and labels of every pod of a profile."""
    for key, one in objects(profile).items():
        spec, kind = one.get("spec", {}), key.split("/")[0]
        if kind == "StatefulSet":
            yield spec["template"]
        if kind == "RayJob":
            yield spec["submitterPodTemplate"]
            spec = spec["rayClusterSpec"]
        if kind in ("RayCluster", "RayJob"):
            yield from (group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]))


_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def restricted_violations(pod: Object, injected: Object | None = None) -> list[str]:
    """Return how a pod violates the restricted pod security standard. `injected` is a container that KubeRay adds."""
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    for volume in pod.get("volumes", ()):
        found += [f"volume {volume['name']}: {kind}" for kind in volume.keys() - {"name"} - _VOLUMES]
    own = pod.get("securityContext", {})
    if own.get("sysctls"):
        found.append("sysctls")
    containers = [*pod["containers"], *pod.get("initContainers", ()), *([injected] if injected else [])]
    for container in containers:
        context = container.get("securityContext", {})
        name = container.get("name", "autoscaler")
        checks = {
            "privileged": not context.get("privileged"),
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is False,
            "capabilities.drop": "ALL" in context.get("capabilities", {}).get("drop", ()),
            "capabilities.add": set(context.get("capabilities", {}).get("add", ())) <= {"NET_BIND_SERVICE"},
            "runAsNonRoot": context.get("runAsNonRoot", own.get("runAsNonRoot")) is True,
            "runAsUser": context.get("runAsUser", own.get("runAsUser")) != 0,
            "seccompProfile": {**own.get("seccompProfile", {}), **context.get("seccompProfile", {})}.get("type")
            in ("RuntimeDefault", "Localhost"),
            "procMount": context.get("procMount", "Default") == "Default",
            "hostPort": not any("hostPort" in port for port in container.get("ports", ())),
        }
        found += [f"{name}: {check}" for check, holds in checks.items() if not holds]
    return found
