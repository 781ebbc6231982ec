"""The cluster files are valid for Ray and KubeRay, pinned, closed to outsiders, and documented."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
SCHEMA = json.loads((Path(__file__).parent / "kuberay-schema.json").read_text())
KUBERNETES = ("raycluster", "rayjob", "networkpolicy")
RAY_UP = ("aws", "gcp")
GPU_TYPES = {"gpu_spot", "gpu_on_demand"}


def ray_up(name: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((CLUSTER / f"{name}.yaml").read_text())
    return config


def kubernetes(name: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((CLUSTER / "kubernetes" / f"{name}.yaml").read_text())
    return config


def cluster_spec() -> dict[str, Any]:
    spec: dict[str, Any] = kubernetes("raycluster")["spec"]
    return spec


def check_kuberay(resource: dict[str, Any]) -> None:
    """Validate a resource against KubeRay's schema."""
    schema = {**SCHEMA["kinds"][resource["kind"]], "$defs": SCHEMA["$defs"]}
    jsonschema.Draft202012Validator(schema).validate(resource)


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all containers of a cluster, and the autoscaler's options."""
    pods = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    return [*(c for pod in pods for c in pod["template"]["spec"]["containers"]), spec["autoscalerOptions"]]


# Valid


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_accepts_the_cluster_files(name: str) -> None:
    validate_config(prepare_config(ray_up(name)))
    with pytest.raises(jsonschema.ValidationError, match="max_wokers"):
        validate_config(prepare_config({**ray_up(name), "max_wokers": 3}))


@pytest.mark.parametrize("name", ["raycluster", "rayjob"])
def test_kuberay_accepts_the_resources(name: str) -> None:
    check_kuberay(kubernetes(name))


def test_the_kuberay_schema_rejects_a_wrong_key_and_a_wrong_type() -> None:
    resource = kubernetes("raycluster")
    resource["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="imagee"):
        check_kuberay(resource)
    resource = kubernetes("raycluster")
    resource["spec"]["workerGroupSpecs"][0]["maxReplicas"] = "8"
    with pytest.raises(jsonschema.ValidationError, match="'8' is not of type 'integer'"):
        check_kuberay(resource)


def test_the_network_policy_is_valid() -> None:
    """KubeRay has no schema for this kind, so the test contains the part of networking.k8s.io/v1 that we use."""
    labels = {
        "type": "object",
        "properties": {"matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}},
        "additionalProperties": False,
    }
    peer = {
        "type": "object",
        "properties": {"podSelector": labels, "namespaceSelector": labels},
        "additionalProperties": False,
    }
    port = {
        "type": "object",
        "properties": {"protocol": {"enum": ["TCP", "UDP"]}, "port": {"type": "integer"}},
        "additionalProperties": False,
    }
    rule = {
        "type": "object",
        "properties": {"from": {"type": "array", "items": peer}, "ports": {"type": "array", "items": port}},
        "required": ["from"],  # a rule without it admits all traffic
        "additionalProperties": False,
    }
    spec = {
        "type": "object",
        "properties": {
            "podSelector": labels,
            "policyTypes": {"type": "array", "items": {"enum": ["Ingress", "Egress"]}},
            "ingress": {"type": "array", "items": rule},
        },
        "required": ["podSelector", "policyTypes"],
        "additionalProperties": False,
    }
    policy = kubernetes("networkpolicy")
    assert (policy["apiVersion"], policy["kind"]) == ("networking.k8s.io/v1", "NetworkPolicy")
    jsonschema.validate(policy["spec"], spec)


def test_the_ray_job_has_the_same_cluster() -> None:
    assert kubernetes("rayjob")["spec"]["rayClusterSpec"] == cluster_spec()


# Autoscaling


def choice(types: dict[str, NodeTypeConfig], **availability: float) -> dict[str, int]:
    """Return the nodes that Ray's autoscaler launches for eight hosts with a quarter GPU each."""
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=types,
        max_num_nodes=8,
        resource_requests=ResourceRequestUtil.group_by_count(
            [ResourceRequestUtil.make({"GPU": 0.25}) for _ in range(8)]
        ),
        recoverable_resource_availabilities=availability,
        cloud_resource_availabilities=availability,
    )
    reply = ResourceDemandScheduler(None).schedule(request)
    return {launch.instance_type: launch.count for launch in reply.to_launch}


@pytest.mark.parametrize("name", RAY_UP)
def test_spot_is_preferred_and_on_demand_is_the_fallback(name: str) -> None:
    types = {
        kind: NodeTypeConfig(
            name=kind,
            min_worker_nodes=node["min_workers"],
            max_worker_nodes=node["max_workers"],
            priority=node["priority"],
            resources=node["resources"],
        )
        for kind, node in ray_up(name)["available_node_types"].items()
        if kind in GPU_TYPES
    }
    assert choice(types) == {"gpu_spot": 2}
    assert choice(types, gpu_spot=0.0) == {"gpu_on_demand": 2}


@pytest.mark.parametrize("name", RAY_UP)
def test_only_the_head_stays_up(name: str) -> None:
    config = ray_up(name)
    types = config["available_node_types"]
    assert set(types) == {config["head_node_type"], *GPU_TYPES}
    assert "GPU" not in types["head"]["resources"]
    assert [types[kind]["min_workers"] for kind in GPU_TYPES] == [0, 0]
    assert types["gpu_spot"]["resources"] == types["gpu_on_demand"]["resources"]
    assert 0 < config["idle_timeout_minutes"] <= 5
    assert config["provider"]["cache_stopped_nodes"] is False


def test_only_the_head_stays_up_on_kubernetes() -> None:
    spec = cluster_spec()
    assert spec["enableInTreeAutoscaling"]
    assert spec["autoscalerOptions"]["idleTimeoutSeconds"] <= 300
    groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    assert [group["minReplicas"] for group in groups.values()] == [0, 0]
    assert groups["gpu-spot"]["priority"] > groups["gpu-on-demand"]["priority"]
    assert "nvidia.com/gpu" not in spec["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    job = kubernetes("rayjob")["spec"]
    assert job["shutdownAfterJobFinishes"]
    assert "--resume auto" in job["entrypoint"]


# Pinned


def test_versions_match_the_constraints_and_the_package() -> None:
    (ray,) = re.findall(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    texts = {
        path: path.read_text()
        for path in [*CLUSTER.glob("*"), *(CLUSTER / "kubernetes").glob("*.yaml")]
        if path.is_file()
    }
    for path, text in texts.items():
        assert set(re.findall(r"rayproject/ray:([\d.]+)-py311-[cg]pu", text)) <= {ray}, path
        assert len(re.findall("rayproject/ray:", text)) == len(
            re.findall(r"rayproject/ray:[\d.]+-py311-[cg]pu", text)
        ), path
        assert set(re.findall(r"REGISTRY/raybcgd:(\S+)", text)) <= {own}, path
    assert cluster_spec()["rayVersion"] == ray
    for name in RAY_UP:
        assert any("--constraint ~/raybcgd/constraints.txt" in line for line in ray_up(name)["setup_commands"])
    assert "--constraint" in texts[CLUSTER / "Dockerfile"]


@pytest.mark.parametrize("name", RAY_UP)
def test_the_files_copied_to_the_nodes_can_be_installed(name: str) -> None:
    copied = {local for remote, local in ray_up(name)["file_mounts"].items() if remote.startswith("~/raybcgd/")}
    assert all((ROOT / local).exists() for local in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert copied == {"raybcgd", "constraints.txt", "pyproject.toml", project["readme"], *project["license-files"]}


# Access


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_up_requires_the_token_and_listens_on_loopback(name: str) -> None:
    config = ray_up(name)
    assert "--env RAY_AUTH_MODE=token" in config["docker"]["run_options"]
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    (start,) = [line for line in config["head_start_ray_commands"] if "--head" in line]
    assert "--dashboard-host=127.0.0.1" in start
    assert "IpPermissions" not in config["provider"].get("security_group", {})  # Ray would only add rules
    for node in config["available_node_types"].values():
        assert name == "aws" or node["node_config"]["tags"] == {"items": ["raybcgd"]}


def test_pods_require_the_token_and_are_not_exposed() -> None:
    spec = cluster_spec()
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert not spec["headGroupSpec"].get("enableIngress")
    for name in KUBERNETES:
        text = (CLUSTER / "kubernetes" / f"{name}.yaml").read_text()
        assert not re.search("LoadBalancer|NodePort|hostPort|hostNetwork|kind: Ingress", text), name
    policy = kubernetes("networkpolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    labels = policy["podSelector"]["matchLabels"]
    pods = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    submitter = kubernetes("rayjob")["spec"]["submitterPodTemplate"]
    for template in [*(pod["template"] for pod in pods), submitter]:
        assert labels.items() <= template["metadata"]["labels"].items()


def test_pods_have_limits_and_no_privileges() -> None:
    spec = cluster_spec()
    submitter = kubernetes("rayjob")["spec"]["submitterPodTemplate"]["spec"]
    for container in [*containers(spec), *submitter["containers"]]:
        assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
    pods = [pod["template"]["spec"] for pod in (spec["headGroupSpec"], *spec["workerGroupSpecs"])] + [submitter]
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_security_page_lists_the_open_ports() -> None:
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \| (.*) \|$", (CLUSTER / "SECURITY.md").read_text(), re.MULTILINE)
    listed = {int(port): (machines, pods) for port, machines, pods in rows}
    within, operator, monitoring = kubernetes("networkpolicy")["spec"]["ingress"]
    assert "ports" not in within  # all ports between the cluster's pods
    assert {rule["port"] for rule in operator["ports"]} == {p for p, (_, pods) in listed.items() if "operator" in pods}
    assert {rule["port"] for rule in monitoring["ports"]} == {
        p for p, (_, pods) in listed.items() if "Prometheus" in pods
    }
    assert [port for port, (machines, _) in listed.items() if "your address" in machines] == [22]
    assert "loopback" in listed[8265][0]


def test_prometheus_can_reach_its_targets() -> None:
    head, *workers = [
        {port["name"]: port["containerPort"] for port in pod["template"]["spec"]["containers"][0]["ports"]}
        for pod in (cluster_spec()["headGroupSpec"], *cluster_spec()["workerGroupSpecs"])
    ]
    open_ports = {rule["port"] for rule in kubernetes("networkpolicy")["spec"]["ingress"][2]["ports"]}
    ray, runs = (kubernetes(f"monitoring/podmonitor-{name}")["spec"] for name in ("ray", "runs"))
    (endpoint,) = ray["podMetricsEndpoints"]
    assert {ports[endpoint["port"]] for ports in (head, *workers)} <= open_ports
    (endpoint,) = runs["podMetricsEndpoints"]
    port = head[endpoint["port"]]
    assert port in open_ports
    assert f"--set metrics.port={port}" in kubernetes("rayjob")["spec"]["entrypoint"]


def test_the_files_and_the_image_contain_no_secrets() -> None:
    for path in [*CLUSTER.glob("*.*"), *(CLUSTER / "kubernetes").glob("*.yaml"), CLUSTER / "Dockerfile"]:
        assert not re.search(
            r"AKIA[0-9A-Z]{16}|BEGIN [A-Z ]*PRIVATE KEY|RAY_AUTH_TOKEN[:=] *[\"']?\w{16}", path.read_text()
        )
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored  # exclude everything that is not listed
    copied = re.findall(r"^COPY --chown=ray (.*) \S+$", (CLUSTER / "Dockerfile").read_text(), re.MULTILINE)
    assert {f"!{name}" for line in copied for name in line.split()} == {
        line for line in ignored if line.startswith("!")
    }


# Documentation


@pytest.mark.parametrize("path", ["aws.yaml", "gcp.yaml", *(f"kubernetes/{name}.yaml" for name in KUBERNETES)])
def test_the_readme_lists_every_value_to_set(path: str) -> None:
    readme = (CLUSTER / "README.md").read_text()
    lines = (CLUSTER / path).read_text().splitlines()
    for number, line in enumerate(lines):
        if "# SET" not in line or "marked SET" in line:
            continue
        setting = lines[number + 1] if line.strip().startswith("#") else line
        keys = re.findall(r"([\w./-]+):(?: |$)", setting.split("#")[0])
        assert any(f"`{key}`" in readme for key in keys), f"{path}: cluster/README.md does not list {keys}"
