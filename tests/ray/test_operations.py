"""Sweeps and comparisons on a cluster of three nodes with a token: stopped, resumed, or refused.

`first_time.py` does the same with runs, and looks at their metrics.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import free_port, small
from tests.dashboards.server import until
from tests.ray.heads import BIN, Head, head

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

TOKEN = "a-token-for-tests-" + "0" * 24
ROUNDS = 100_000
"""More than the test waits for."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Head]:
    """A head that runs no hosts, and two nodes with a logical GPU each."""
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    with head("--num-cpus=0", "--num-gpus=0", **settings) as started:
        command = [str(BIN / "ray"), "start", "--block", f"--address={started.address}"]
        command += ["--num-cpus=2", "--num-gpus=1", f"--temp-dir={started.home}/ray", "--node-ip-address=127.0.0.1"]
        command += ["--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"]
        log = (started.home / "node.log").open("a")
        nodes = [subprocess.Popen(command, env=started.env, stdout=log, stderr=log) for _ in range(2)]
        yield started
        for node in nodes:
            node.terminate()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A run on half a GPU. All runs want the same port for their metrics."""
    hosts = {"device": "gpu", "logical_gpus": True, "num_gpus": 0.5, "count": 1, "spread": False}
    metrics = {"discovery": str(tmp_path / "discovery"), "port": free_port()}
    experiment = small(engine="ray", rounds=ROUNDS, hosts=hosts, metrics=metrics, checkpoint={"every": 5})
    path = tmp_path / "run.toml"
    path.write_text(experiment.to_toml())
    return path


def submit(cluster: Head, config: Path, out: Path, *arguments: str) -> str:
    """Submit a run and return the id of its job."""
    # Without http://, which the command adds.
    address = cluster.dashboard.removeprefix("http://")
    done = cluster.raybcgd("submit", str(config), "--address", address, "--out", str(out), "--no-wait", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = [line.removeprefix("job: ") for line in done.stdout.splitlines() if line.startswith("job: ")]
    return job


def stop(cluster: Head, job: str) -> None:
    command = [str(BIN / "ray"), "job", "stop", job, "--address", cluster.dashboard]
    subprocess.run(command, env=cluster.env, capture_output=True, timeout=100, check=True)


def rounds(out: Path) -> int:
    return (out / "rounds.jsonl").read_text().count("\n") if (out / "rounds.jsonl").exists() else 0


def test_a_sweep_is_submitted_stopped_and_resumed(cluster: Head, config: Path, tmp_path: Path) -> None:
    out, grid = tmp_path / "sweep", ("--", "--grid", "algorithm.lr=0.05,0.1")
    settings = (
        "--command",
        "sweep",
        "--set",
        "rounds=3000",
    )
    first = submit(cluster, config, out, *settings, *grid)
    until(lambda: min(rounds(out / "000"), rounds(out / "001")) > 10, 120)
    stop(cluster, first)
    done = [rounds(out / f"00{k}") for k in range(2)]
    assert max(done) < 3000, "the sweep was stopped before its end"
    arguments = ["submit", str(config), "--address", cluster.dashboard, "--out", str(out), "--resume", "auto"]
    shorter = [word.replace("3000", str(max(done) + 20)) for word in settings]
    finished = cluster.raybcgd(*arguments, *shorter, *grid)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert (out / "best.toml").exists()
    for k in range(2):
        log = [json.loads(line)["round"] for line in (out / f"00{k}/rounds.jsonl").read_text().splitlines()]
        assert log == list(range(max(done) + 20))


def test_a_comparison_is_submitted_stopped_and_resumed(cluster: Head, config: Path, tmp_path: Path) -> None:
    out, methods = tmp_path / "comparison", ("--", "--algorithms", "fedavg,fedbcgd")
    settings = (
        "--command",
        "compare",
    )
    first = submit(cluster, config, out, *settings, *methods)
    until(lambda: rounds(out / "fedavg") > 10, 120)
    stop(cluster, first)
    total = rounds(out / "fedavg") + 20
    arguments = ["submit", str(config), "--address", cluster.dashboard, "--out", str(out), "--resume", "auto"]
    finished = cluster.raybcgd(*arguments, *settings, "--set", f"rounds={total}", *methods)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "resuming from round " in finished.stdout
    assert (out / "comparison.json").exists()
    for name in ("fedavg", "fedbcgd"):
        log = [json.loads(line)["round"] for line in (out / name / "rounds.jsonl").read_text().splitlines()]
        assert log == list(range(total))


@pytest.mark.parametrize("env", [{"RAY_AUTH_TOKEN": "b" * 32}, {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""}])
def test_a_wrong_token_is_refused_within_seconds(
    cluster: Head, config: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    command = ["train", str(config), "--set", f"hosts.address={cluster.address}", "--out", str(tmp_path / "out")]
    began = time.monotonic()
    done = cluster.raybcgd(*command, **env)
    seconds = time.monotonic() - began
    print(f"refused after {seconds:.1f} s")
    assert seconds < 12, "most of it is importing torch and Ray on a busy machine; Ray alone needs more than 20 s"
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: the Ray cluster at ")
    assert "refuses the token" in done.stderr
    assert done.stderr.count("\n") == 1
