"""A day on a cluster of three nodes with a token: two runs at once, found by Prometheus, one stopped and resumed."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import free_port, small
from tests.dashboards.server import Prometheus, until
from tests.ray.heads import BIN, Head, head

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus (Debian's package) is not installed"),
]

TOKEN = "a-token-for-tests-" + "0" * 24
ROUNDS = 5000
"""More than the test waits for."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Head]:
    """A head that runs no hosts, and two nodes with logical GPUs."""
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    with head("--num-cpus=0", "--num-gpus=0", **settings) as started:
        nodes = []
        for _ in range(2):
            command = [
                str(BIN / "ray"),
                "start",
                "--block",
                f"--address={started.address}",
                "--num-cpus=2",
                "--num-gpus=1",
            ]
            command += [f"--temp-dir={started.home}/ray", "--node-ip-address=127.0.0.1"]
            command += ["--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"]
            log = (started.home / "node.log").open("a")
            nodes.append(subprocess.Popen(command, env=started.env, stdout=log, stderr=log))
        yield started
        for node in nodes:
            node.terminate()


def submit(cluster: Head, config: Path, out: Path, *arguments: str) -> str:
    """Submit a run and return the id of its job."""
    done = cluster.raybcgd(
        "submit", str(config), "--address", cluster.dashboard, "--out", str(out), "--no-wait", *arguments
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = [line.removeprefix("job: ") for line in done.stdout.splitlines() if line.startswith("job: ")]
    return job


def rounds(out: Path) -> int:
    return (out / "rounds.jsonl").read_text().count("\n") if (out / "rounds.jsonl").exists() else 0


def test_two_runs_are_found_stopped_and_resumed(cluster: Head, tmp_path: Path) -> None:
    (tmp_path / "ray").symlink_to(cluster.home / "ray")  # where the config expects Ray's folder
    server = Prometheus(tmp_path)
    port = free_port()
    config = tmp_path / "run.toml"
    # Both runs want the same port and have the same last folder names.
    hosts = {"device": "gpu", "num_gpus": 0.5, "count": 1}
    metrics = {"discovery": str(server.discovery), "port": port, "linger_seconds": 3}
    experiment = small(
        engine="ray", rounds=ROUNDS, hosts=hosts, metrics=metrics, local={"epochs": 20}, checkpoint={"every": 5}
    )
    config.write_text(experiment.to_toml())
    one, two = tmp_path / "one/x/run", tmp_path / "two/x/run"

    def seen() -> dict[str, float]:
        found = server.query("raybcgd_round")
        assert len(found) == len({series["metric"]["instance"] for series in found})
        return {series["metric"]["instance"]: float(series["value"][1]) for series in found}

    try:
        began = time.monotonic()
        first = submit(cluster, config, one, "--env", "MARK=first")
        until(lambda: rounds(one) > 0, 120)
        print(f"first round {time.monotonic() - began:.1f} s after submit")
        submit(cluster, config, two)
        until(lambda: rounds(two) > 0, 120)
        until(lambda: seen().keys() == {str(one), str(two)}, 30)
        nodes = {s["metric"]["instance"] for s in server.query('up{job="ray"} == 1')}
        assert len(nodes) >= 3, nodes
        listed = cluster.raybcgd("jobs", "--address", cluster.dashboard, COLUMNS="200")
        assert listed.stdout.count("running") == 2, listed.stdout + listed.stderr
        assert f"/{ROUNDS}" in listed.stdout

        cluster_command = [str(BIN / "ray"), "job", "stop", first, "--address", cluster.dashboard]
        subprocess.run(cluster_command, env=cluster.env, check=True, capture_output=True, timeout=60)
        until(lambda: seen().keys() == {str(two)}, 30)  # a stopped run is not a killed one
        assert server.query('up{job="raybcgd", run!=""} == 0') == []
        done = rounds(one)
        assert done < ROUNDS
        submit(cluster, config, one, "--resume", "auto")
        until(lambda: rounds(one) > done + 2, 120)
        until(lambda: seen().get(str(one), 0) > done, 30)
    finally:
        server.close()
    log = [json.loads(line)["round"] for line in (one / "rounds.jsonl").read_text().splitlines()]
    assert log == list(range(len(log)))
