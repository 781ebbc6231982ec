"""The files for `ray up`: accepted by Ray, complete, and with commands that work for an ordinary user."""

import json
import os
import signal
import stat
import tomllib
import urllib.request
from pathlib import Path

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.docker import docker_start_cmds
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil

from raybcgd.cluster.ray_up import MONITORING, SENT, SOURCE
from raybcgd.cluster.settings import AwsValues
from raybcgd.record.discovery import Target, discovery_file, write_target
from tests.cluster.shipped import CLUSTER, RAY_UP, ROOT, ray_up
from tests.cluster.steps import Home, copy
from tests.conftest import free_port
from tests.dashboards.server import until

GPU_TYPES = {"gpu_spot", "gpu_on_demand"}


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_accepts_the_cluster_files(name: str) -> None:
    validate_config(prepare_config(ray_up(name)))
    with pytest.raises(jsonschema.ValidationError, match="max_wokers"):
        validate_config(prepare_config({**ray_up(name), "max_wokers": 3}))


def choice(types: dict[str, NodeTypeConfig], **availability: float) -> dict[str, int]:
    """Return the nodes that Ray's autoscaler launches for eight hosts with a quarter GPU and 2.5 GiB each."""
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=types,
        max_num_nodes=8,
        resource_requests=ResourceRequestUtil.group_by_count(
            [ResourceRequestUtil.make({"GPU": 0.25, "memory": 2.5 * 2**30}) for _ in range(8)]
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


@pytest.mark.parametrize("name", RAY_UP)
def test_the_token_is_required_and_the_dashboard_listens_on_loopback(name: str) -> None:
    config = ray_up(name)
    assert "--env RAY_AUTH_MODE=token" in config["docker"]["run_options"]
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    (start,) = [line for line in config["head_start_ray_commands"] if "--head" in line]
    assert "--dashboard-host=127.0.0.1" in start
    assert "IpPermissions" not in config["provider"].get("security_group", {})  # Ray would only add rules
    for node in config["available_node_types"].values():
        assert name == "aws" or node["node_config"]["tags"] == {"items": ["raybcgd"]}


def test_aws_nodes_have_a_current_image_and_a_role_that_the_head_may_pass() -> None:
    """Ray's default image is from 2022, and its default role may not pass a role to workers."""
    policy = json.loads((CLUSTER / "ray-up/aws/iam-policy.json").read_text())
    allowed = {
        action: statement["Resource"]
        for statement in policy["Statement"]
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    }
    for node in ray_up("aws")["available_node_types"].values():
        assert node["node_config"]["ImageId"] == AwsValues.model_fields["machine_image"].default
        (role,) = node["node_config"]["IamInstanceProfile"].values()
        assert allowed["iam:PassRole"] == f"arn:aws:iam::*:role/{role}"
    assert {"ec2:*", "ssm:GetParameters", "s3:GetObject", "s3:PutObject"} <= allowed.keys()
    assert "arn:aws:s3:::my-bucket/*" in allowed["s3:GetObject"]


@pytest.mark.parametrize("name", RAY_UP)
def test_the_files_sent_to_the_nodes_are_complete(name: str) -> None:
    mounts = ray_up(name)["file_mounts"]
    sent = {remote.removeprefix(f"{SOURCE}/"): local for remote, local in mounts.items() if SOURCE in remote}
    assert sent == {name: name for name in (*SENT, *MONITORING)}
    assert all((ROOT / local).exists() for local in sent.values())
    compose = yaml.safe_load((CLUSTER / "monitoring/compose.yaml").read_text())
    mounted = [volume.split(":")[0] for service in compose["services"].values() for volume in service["volumes"]]
    for path in [(CLUSTER / "monitoring" / source).resolve() for source in mounted if source.startswith(".")]:
        assert any(path.is_relative_to(ROOT / local) for local in sent.values()), f"Docker mounts {path}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"raybcgd", "constraints.txt", "pyproject.toml", project["readme"], *project["license-files"]} == set(SENT)


@pytest.mark.parametrize("name", RAY_UP)
def test_prometheus_on_the_machine_sees_the_runs_in_the_container(name: str) -> None:
    options = ray_up(name)["docker"]["run_options"]
    for folder in ("/tmp/ray", "/tmp/raybcgd-discovery"):
        assert f"--volume {folder}:{folder}" in options
    assert any(option.endswith(":/home/ray/raybcgd-runs") for option in options)  # Ray starts containers with --rm
    start, collector = ray_up(name)["worker_start_ray_commands"][-2:]
    assert "--metrics-export-port=8081" in start  # by which prometheus.yml finds the workers
    assert "python -m raybcgd.record.collector --host 0.0.0.0" in collector
    command = docker_start_cmds(
        "ubuntu", "image", ray_up(name)["file_mounts"], "raybcgd", options, "raybcgd", "/home/ray", "docker"
    )
    folder = "/tmp/ray_tmp_mount/raybcgd/~/raybcgd-source/cluster/monitoring"
    assert f"{folder}:" in command
    assert f"'cd {folder} && " in (CLUSTER / "monitoring/README.md").read_text()


@pytest.mark.slow
def test_the_setup_commands_install_the_package_as_an_ordinary_user(tmp_path: Path) -> None:
    """Docker creates the parents of mounted files as root. The test of the Dockerfile is a similar, fast one."""
    home, config = Home(tmp_path), ray_up("aws")
    assert config["setup_commands"] == ray_up("gcp")["setup_commands"]
    source = home.path / "raybcgd-source"
    for local in SENT:
        copy(ROOT / local, source / local)
    home.protect(source)
    for _ in range(2):  # a second `ray up` runs them again
        for command in config["setup_commands"]:
            done = home.run(command)
            assert done.returncode == 0, done.stdout + done.stderr
    home.check_installation()


@pytest.mark.parametrize("name", RAY_UP)
def test_the_collector_of_a_worker_starts_in_the_background_and_answers(name: str, tmp_path: Path) -> None:
    home, port = Home(tmp_path), free_port()
    command = ray_up(name)["worker_start_ray_commands"][-1]
    for shipped, here in (
        (" /tmp/", f" {tmp_path}/"),
        ("--host 0.0.0.0", f"--host 127.0.0.1 --port {port} --discovery {tmp_path}"),
        ("nohup ", f"nohup env PYTHONPATH={ROOT} timeout 60 "),
    ):
        assert shipped in command
        command = command.replace(shipped, here)
    write_target(discovery_file(str(tmp_path), "a"), Target("127.0.0.1:9", "a", "/a"))
    done = home.run(f"{command} echo $! > {tmp_path}/pid")  # the shell ends, as at the end of `docker exec`
    try:
        assert done.returncode == 0, done.stderr
        until(lambda: b'raybcgd_run_up{instance="/a",run="a"} 0.0' in read(f"http://127.0.0.1:{port}/metrics"), 30)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)


def read(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=10) as answer:
        content: bytes = answer.read()
        return content


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("name", RAY_UP)
def test_the_initialization_commands_make_the_folders_and_wait_for_the_driver_of_a_gpu(
    name: str, gpu: bool, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    programs, machine = home.path / "bin", home.path / "machine"
    programs.mkdir()
    scripts = {
        "sudo": 'exec "$@"',
        "lspci": f"echo {'3D controller: NVIDIA Corporation' if gpu else 'Ethernet controller'}",
        "sleep": "true",
        # It fails twice, as while the driver is being installed.
        "nvidia-smi": f'echo x >> {machine}/tries; test "$(wc -l < {machine}/tries)" -ge 3',
    }
    for program, script in scripts.items():
        (programs / program).write_text(f"#!/bin/sh\n{script}\n")
        (programs / program).chmod(0o755)
    machine.mkdir()
    for command in ray_up(name)["initialization_commands"]:
        done = home.run(command.replace(" /tmp/", f" {machine}/").replace(" /var/tmp/", f" {machine}/"), path=programs)
        assert done.returncode == 0, done.stderr
    assert (machine / "tries").exists() is gpu, "a head without a GPU does not wait"
    assert not gpu or (machine / "tries").read_text() == "x\n" * 3
    for folder in ("ray", "raybcgd-discovery", "raybcgd-runs"):
        assert stat.S_IMODE(os.stat(machine / folder).st_mode) == 0o1777
