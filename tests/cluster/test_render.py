"""`raybcgd cluster render`: the shipped profiles are current and valid, and wrong values are refused with one line."""

import copy
import json
import shutil
import subprocess
import tomllib
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import tomli_w
import yaml
from typer.testing import CliRunner, Result

from raybcgd.cli import app
from raybcgd.cluster.pods import PORTS
from raybcgd.cluster.render import read_values, render
from raybcgd.cluster.settings import JobValues
from raybcgd.cluster.versions import KUBERAY_VERSION
from raybcgd.engine.settings import PROCESS_MB, HostsConfig
from tests.cluster.shipped import (
    CLUSTER,
    PROFILES,
    RAY_UP,
    SCHEMAS,
    check_custom,
    cluster_spec,
    objects,
    pods,
    restricted_violations,
)

VALUES = [*(CLUSTER / f"kubernetes/{name}.toml" for name in PROFILES), *(CLUSTER / f"ray-up/{n}.toml" for n in RAY_UP)]
KUBERNETES_VERSION = "1.33"
CORE = {"ConfigMap", "NetworkPolicy", "PersistentVolumeClaim", "Service", "StatefulSet"}


def run(values: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["cluster", "render", str(values), *arguments])


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_shipped_files_are_up_to_date(values: Path) -> None:
    folder = values.with_suffix("")
    shipped = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert render(read_values(values), values.name) == shipped, "run `make dashboards`"


def test_the_command_writes_the_files_and_prints_how_to_use_the_cluster(tmp_path: Path) -> None:
    done = run(CLUSTER / "kubernetes/aws-spot.toml", "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    for name in ("raycluster.yaml", "job/rayjob.yaml", "storage.yaml", "monitoring/alerts.yaml"):
        assert (tmp_path / "out" / name).read_text() == (CLUSTER / "kubernetes/aws-spot" / name).read_text()
    assert "--set hosts.device=gpu --set hosts.num_gpus=0.25 --set hosts.max_count=32" in done.output


@pytest.mark.parametrize("profile", PROFILES)
def test_every_object_is_valid(profile: str) -> None:
    for one in objects(profile).values():
        if one["kind"] in CORE:
            kubernetes_validate.validate(one, KUBERNETES_VERSION, strict=True)
        else:
            check_custom(one)


def test_the_schemas_are_those_of_the_pinned_versions() -> None:
    assert SCHEMAS["kuberay"]["version"] == KUBERAY_VERSION
    version = SCHEMAS["prometheus-operator"]["version"]
    assert f"version {version} of the Prometheus operator" in (CLUSTER / "monitoring/README.md").read_text()


def test_the_validators_reject_a_wrong_key_and_a_wrong_type() -> None:
    resource = copy.deepcopy(objects("aws-spot")["RayCluster/raybcgd"])
    resource["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="imagee"):
        check_custom(resource)
    resource = copy.deepcopy(objects("aws-spot")["RayCluster/raybcgd"])
    resource["spec"]["workerGroupSpecs"][0]["maxReplicas"] = "8"
    with pytest.raises(jsonschema.ValidationError, match="'8' is not of type 'integer'"):
        check_custom(resource)
    monitor = copy.deepcopy(objects("aws-spot")["PodMonitor/raybcgd-runs"])
    monitor["spec"]["podMetricsEndpoints"][0]["honourLabels"] = True
    with pytest.raises(jsonschema.ValidationError, match="honourLabels"):
        check_custom(monitor)
    receiver = copy.deepcopy(objects("aws-spot")["AlertmanagerConfig/raybcgd"])
    receiver["spec"]["route"]["matchers"][0]["matchType"] = "~="
    with pytest.raises(jsonschema.ValidationError, match="'~=' is not one of"):
        check_custom(receiver)
    claim = copy.deepcopy(objects("aws-spot")["PersistentVolumeClaim/raybcgd"])
    claim["spec"]["storageClas"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError, match="storageClas"):
        kubernetes_validate.validate(claim, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("profile", PROFILES)
def test_pods_satisfy_the_restricted_standard_and_have_limits(profile: str) -> None:
    autoscaler = cluster_spec(profile)["autoscalerOptions"]
    found = list(pods(profile))
    assert len(found) >= 5
    for template in found:
        pod = template["spec"]
        assert restricted_violations(pod, autoscaler) == []
        if "fsGroup" in pod["securityContext"]:  # by default, every start would change the owner of every file
            assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
        assert pod["automountServiceAccountToken"] == (pod["containers"][0]["name"] == "ray-head")
        for container in [*pod["containers"], autoscaler]:
            assert {"cpu", "memory"} <= container["resources"]["limits"].keys()


def test_the_check_of_the_standard_finds_violations() -> None:
    pod = copy.deepcopy(cluster_spec("aws-spot")["headGroupSpec"]["template"]["spec"])
    del pod["containers"][0]["securityContext"]["capabilities"]
    pod["volumes"].append({"name": "machine", "hostPath": {"path": "/"}})
    pod["hostNetwork"] = True
    without_context = {"resources": {}}
    assert restricted_violations(pod, without_context) == [
        "hostNetwork",
        "volume machine: hostPath",
        "ray-head: capabilities.drop",
        "autoscaler: allowPrivilegeEscalation",
        "autoscaler: capabilities.drop",
    ]


@pytest.mark.parametrize("profile", PROFILES)
def test_volumes_exist_and_claims_are_created(profile: str) -> None:
    names = objects(profile).keys()
    for template in pods(profile):
        volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", ())}
        for container in template["spec"]["containers"]:
            mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
            assert mounted <= volumes.keys() | {"data"}  # `data` is a claim template of Redis
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}" in names
            if "configMap" in volume:
                assert f"ConfigMap/{volume['configMap']['name']}" in names


def test_a_bucket_can_replace_the_volume(tmp_path: Path) -> None:
    changes: dict[str, object] = {"storage__volume": False, "storage__bucket": "s3://b/x"}
    job = {"config": str(CLUSTER.parent / "jobs/configs/quickstart.toml")}
    path = changed(tmp_path, "kubernetes/no-gpu", changes, job)
    done = run(path)
    assert "--set checkpoint.address=s3://b/x/NAME-OF-THE-RUN" in done.output
    assert not (tmp_path / "values/storage.yaml").exists()
    (config, job_object) = yaml.safe_load_all((tmp_path / "values/job/rayjob.yaml").read_text())
    check_custom(job_object)
    assert "checkpoint.address=s3://b/x/first" in job_object["spec"]["entrypoint"]
    cluster = job_object["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert restricted_violations(group["template"]["spec"]) == []
        (shared,) = [one for one in group["template"]["spec"]["volumes"] if one["name"] == "shared"]
        assert shared["emptyDir"]
    assert config["kind"] == "ConfigMap"


def test_redis_keeps_the_control_store_on_premises() -> None:
    options = cluster_spec("on-premises")["gcsFaultToleranceOptions"]
    found = objects("on-premises")
    host, port = options["redisAddress"].split(":")
    service = found[f"Service/{host}"]["spec"]
    assert service["ports"][0]["port"] == int(port)
    template = found[f"StatefulSet/{host}"]["spec"]["template"]
    assert template["metadata"]["labels"] == service["selector"]
    secret = options["redisPassword"]["valueFrom"]["secretKeyRef"]
    assert template["spec"]["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"] == secret
    assert "gcsFaultToleranceOptions" not in cluster_spec("aws-spot")


def test_only_the_port_of_redis_is_admitted_to_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control store of Ray has the same port by default."""
    monkeypatch.setitem(PORTS, "gcs", 7000)
    values = CLUSTER / "kubernetes/on-premises.toml"
    _, service, policy = yaml.safe_load_all(render(read_values(values), values.name)["redis.yaml"])
    (ingress,) = policy["spec"]["ingress"]
    assert [one["port"] for one in ingress["ports"]] == [one["port"] for one in service["spec"]["ports"]] == [6379]


def test_a_job_has_the_cluster_of_its_profile_and_a_checked_config() -> None:
    job = objects("aws-spot")["RayJob/raybcgd-first"]["spec"]
    config = tomllib.loads(objects("aws-spot")["ConfigMap/raybcgd-first"]["data"]["config.toml"])
    assert config == tomllib.loads((CLUSTER.parent / "jobs/configs/quickstart.toml").read_text())
    assert job["shutdownAfterJobFinishes"]
    assert "--resume auto" in job["entrypoint"]
    assert job["backoffLimit"] == JobValues.model_fields["retries"].default
    cluster = copy.deepcopy(job["rayClusterSpec"])
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod["volumes"].pop()["configMap"]["name"] == "raybcgd-first"
        assert pod["containers"][0]["volumeMounts"].pop()["mountPath"] == "/etc/raybcgd"
    assert cluster == cluster_spec("aws-spot")


@pytest.mark.parametrize("profile", PROFILES)
def test_mps_starts_before_ray_where_hosts_share_a_gpu(profile: str) -> None:
    worker = cluster_spec(profile)["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    assert worker.get("command") == (None if profile == "no-gpu" else ["nvidia-cuda-mps-control -d || true"])


@pytest.mark.parametrize(
    ("workers", "hosts", "on"),
    [({}, {}, True), ({}, {"num_gpus": 1}, False), ({"mps": False}, {}, False), ({"gpus": 0}, {}, False)],
    ids=["shared", "whole", "off", "cpu"],
)
@pytest.mark.parametrize("target", ["kubernetes/on-premises", "ray-up/aws"])
def test_mps_is_on_by_default_where_hosts_share_a_gpu(
    tmp_path: Path, target: str, workers: dict[str, object], hosts: dict[str, object], on: bool
) -> None:
    values = tomllib.loads((CLUSTER / f"{target}.toml").read_text())
    values["workers"] = {**values["workers"], "memory_gib": 999, **workers}
    values.get("kubernetes", {}).pop("job", None)  # its config is elsewhere
    path = tmp_path / "values.toml"
    path.write_text(tomli_w.dumps({**values, "hosts": hosts}))
    assert run(path).exit_code == 0
    files = [file.read_text() for file in (tmp_path / "values").rglob("*.yaml")]
    assert any("nvidia-cuda-mps-control -d" in text for text in files) is on


@pytest.mark.parametrize("profile", PROFILES)
def test_monitoring_objects_have_the_label_that_prometheus_selects_by(profile: str) -> None:
    found = [one for one in objects(profile).values() if one["apiVersion"].startswith("monitoring.coreos.com")]
    assert len(found) == 4
    for one in found:
        assert one["metadata"]["labels"]["release"] == "kube-prometheus-stack", one["kind"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian's prometheus) is not installed")
def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(objects("aws-spot")["PrometheusRule/raybcgd"]["spec"]))
    done = subprocess.run(["promtool", "check", "rules", str(tmp_path / "rules.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboards_are_loaded_by_grafanas_sidecar() -> None:
    boards = [one for key, one in objects("no-gpu").items() if key.startswith("ConfigMap/raybcgd-dashboard-")]
    assert len(boards) == 3
    for one in boards:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        (text,) = one["data"].values()
        assert json.loads(text)["panels"]


def changed(tmp_path: Path, shipped: str, changes: dict[str, object], job: dict[str, str] | None = None) -> Path:
    """Write a copy of shipped values with other settings, given as paths such as workers__gpus, and another job."""
    tables = tomllib.loads((CLUSTER / f"{shipped}.toml").read_text())
    for path, value in changes.items():
        *parents, last = path.split("__")
        table = tables
        for parent in parents:
            table = table.setdefault(parent, {})
        if value is None:
            table.pop(last)
        else:
            table[last] = value
    tables.get("kubernetes", {}).pop("job", None)
    tables |= {"kubernetes": {**tables["kubernetes"], "job": job}} if job else {}
    file = tmp_path / "values.toml"
    file.write_text(tomli_w.dumps(tables))
    return file


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("kubernetes/aws-spot", {"workers__max_node": 3}, "workers.max_node is not a setting; did you mean max_nodes?"),
        ("kubernetes/aws-spot", {"max_nodes": 3}, "max_nodes is not a setting; did you mean workers.max_nodes?"),
        ("kubernetes/aws-spot", {"hosts__num_gpus": 1.5}, "hosts.num_gpus = 1.5: must be at most 1"),
        ("kubernetes/aws-spot", {"workers__memory_gib": 15}, "memory_gib = 15 is less than the 15.7 GiB that 4 hosts"),
        ("kubernetes/aws-spot", {"hosts__memory_mb": 8192}, "raise it, or lower hosts.memory_mb, or raise hosts"),
        ("kubernetes/no-gpu", {"workers__cpus": 16}, "or lower workers.cpus"),
        ("kubernetes/aws-spot", {"kubernetes__image": None}, "kubernetes.image is not set and has no default; set it"),
        ("kubernetes/aws-spot", {"kubernetes__spot_selector": {}}, "spot = true needs kubernetes.spot_selector"),
        ("kubernetes/no-gpu", {"workers__on_demand": False}, "both false: no node could start"),
        ("kubernetes/no-gpu", {"aws": {"region": "r", "zones": ["z"]}}, "but have [kubernetes] and [aws]; use one"),
        ("ray-up/aws", {"storage__bucket": None}, "storage.bucket is not set: nodes of `ray up` share no disk"),
        ("ray-up/aws", {"storage__bucket": "gs://b/x"}, 'storage.bucket = "gs://b/x": nodes of [aws] have no access'),
        ("ray-up/gcp", {"storage__bucket": "s3://b/x"}, 'storage.bucket = "s3://b/x": nodes of [gcp] have no access'),
        ("kubernetes/no-gpu", {"storage__volume": False}, "storage.volume = false needs storage.bucket"),
        ("ray-up/gcp", {"gcp__project": None}, "gcp.project is not set and has no default; set it"),
        ("ray-up/gcp", {"name": "My Cluster"}, "name = 'My Cluster': string should match pattern"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_with_one_line(
    tmp_path: Path, name: str, changes: dict[str, object], message: str
) -> None:
    done = run(changed(tmp_path, name, changes))
    assert done.exit_code == 2, done.output
    assert done.output.startswith("error: ")
    assert message in done.output
    assert done.output.count("\n") == 1
    assert not (tmp_path / "values").exists()


def test_alerts_need_no_webhook(tmp_path: Path) -> None:
    path = changed(tmp_path, "kubernetes/aws-spot", {"monitoring": {"alert_secret": ""}})
    done = run(path)
    assert done.exit_code == 0, done.output
    found = {file.name for file in (path.with_suffix("") / "monitoring").iterdir()}
    assert "alerts.yaml" in found
    assert "alertmanager.yaml" not in found


def test_four_hosts_fit_on_a_worker_with_16_gib(tmp_path: Path) -> None:
    changes: dict[str, object] = {"workers__memory_gib": 16, "hosts__num_gpus": 0.25, "workers__gpus": 1}
    path = changed(tmp_path, "kubernetes/aws-spot", changes)
    assert run(path).exit_code == 0
    values, settings = read_values(path), HostsConfig()
    assert values.hosts_per_node == 4
    assert values.hosts.state_memory_mb == settings.state_memory_mb, "the default of a run"
    assert 4 * (PROCESS_MB["gpu"] + settings.state_memory_mb) * 2**20 <= values.ray_memory_bytes
    group = yaml.safe_load((tmp_path / "values/raycluster.yaml").read_text())["spec"]["workerGroupSpecs"][0]
    assert int(group["rayStartParams"]["memory"]) == values.ray_memory_bytes


def test_a_wrong_config_of_a_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("rouns = 3\n")
    text = (CLUSTER / "kubernetes/no-gpu.toml").read_text().replace("../../jobs/configs/quickstart.toml", "run.toml")
    (tmp_path / "values.toml").write_text(text)
    done = run(tmp_path / "values.toml")
    assert done.exit_code == 2
    assert "rouns is not a setting; did you mean rounds?" in done.output


@pytest.mark.parametrize("text", [None, "name = "])
def test_a_missing_or_broken_file_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "values.toml").write_text(text)
    done = run(tmp_path / "values.toml")
    assert done.exit_code == 2
    assert "check the path" in done.output if text is None else "is not valid TOML" in done.output
