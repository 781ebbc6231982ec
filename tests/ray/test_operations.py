"""A day on a cluster of three nodes with a token: two runs at once, found by Prometheus, one stopped and resumed."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboards.build import expressions
from raybcgd.experiment import run
from raybcgd.record.metrics import METRICS
from tests.conftest import free_port, small
from tests.dashboards.server import Prometheus, until
from tests.ray.heads import BIN, ROOT, Head, head

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus (Debian's package) is not installed"),
]

TOKEN = "a-token-for-tests-" + "0" * 24
ROUNDS = 100_000
"""More than the test waits for."""
WITHOUT_VALUE = {"hosts_device_memory_bytes", "hosts_device_reserved_bytes", "traffic_simulated_seconds"}
"""Metrics of GPUs and of links, which the runs do not have."""


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
def prometheus(cluster: Head, tmp_path: Path) -> Iterator[Prometheus]:
    (tmp_path / "ray").symlink_to(cluster.home / "ray")  # where the config expects Ray's folder
    server = Prometheus(tmp_path)
    yield server
    server.close()


@pytest.fixture
def config(prometheus: Prometheus, tmp_path: Path) -> Path:
    """A run on half a GPU. All runs want the same port."""
    hosts = {"device": "gpu", "logical_gpus": True, "num_gpus": 0.5, "count": 1, "spread": False}
    metrics = {"discovery": str(prometheus.discovery), "port": free_port(), "linger_seconds": 3, "target": 0.01}
    experiment = small(
        engine="ray",
        rounds=ROUNDS,
        hosts=hosts,
        metrics=metrics,
        checkpoint={"every": 5},
        data={"phases": {"count": 2, "rounds_per_phase": 1}},
        evaluation={"clients": 3, "metrics": ["top5"]},
    )
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


def ray_job(cluster: Head, command: str, job: str) -> str:
    return ray(cluster, "job", command, job)


def ray(cluster: Head, *words: str) -> str:
    done = subprocess.run(
        [str(BIN / "ray"), *words, "--address", cluster.dashboard],
        env=cluster.env,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout


def rounds(out: Path) -> int:
    return (out / "rounds.jsonl").read_text().count("\n") if (out / "rounds.jsonl").exists() else 0


def test_two_runs_are_found_stopped_and_resumed(
    cluster: Head, prometheus: Prometheus, config: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "one/x/run", tmp_path / "two/x/run"  # with the same last folder names

    def seen() -> dict[str, float]:
        found = prometheus.query("raybcgd_round")
        assert len(found) == len({series["metric"]["instance"] for series in found})
        return {series["metric"]["instance"]: float(series["value"][1]) for series in found}

    began = time.monotonic()
    first = submit(cluster, config, one)
    submitted = time.monotonic()
    until(lambda: rounds(one) > 0, 120)
    print(
        f"first round {time.monotonic() - began:.1f} s after the command, {time.monotonic() - submitted:.1f} s after it"
    )
    began = time.monotonic()
    second = submit(cluster, config, two)
    until(lambda: rounds(two) > 0, 120)
    print(f"second run: first round {time.monotonic() - began:.1f} s after the command")
    until(lambda: seen().keys() == {str(one), str(two)}, 30)

    _everything_is_found(prometheus)
    coordinators = json.loads(ray(cluster, "list", "actors", "--filter", "class_name=Coordinator", "--format", "json"))
    assert len(coordinators) == 2
    assert len({actor["node_id"] for actor in coordinators}) == 1, "both runs are on one node"
    listed = cluster.raybcgd("jobs", "--address", cluster.dashboard, COLUMNS="300")
    assert listed.stdout.count("running") == 2, listed.stdout + listed.stderr
    progress = re.findall(rf"│ (\d+)/{ROUNDS} +│ (\d+\.\d)% +│ (\d+\.\d\d) +│", listed.stdout)
    assert len(progress) == 2, listed.stdout
    assert all(int(done) > 0 and float(seconds) < 60 for done, _, seconds in progress)

    began = time.monotonic()
    ray_job(cluster, "stop", first)
    until(lambda: seen().keys() == {str(two)}, 30)
    print(f"stopped and out of the metrics after {time.monotonic() - began:.1f} s")
    # A stopped run is not a killed one: it removes its file, which Prometheus reads again after a while.
    until(lambda: prometheus.query('up{job="raybcgd", run!=""} == 0') == [], 15)
    done, log = rounds(one), ray_job(cluster, "logs", first)
    assert f"ended by SIGTERM after {done} rounds; continue from the last checkpoint" in log
    assert "Traceback" not in log
    assert "*** SIGTERM received" not in log, "Ray's own handler dumps the stack"

    began = time.monotonic()
    again = submit(cluster, config, one, "--resume", "auto")
    until(lambda: rounds(one) > done + 2, 120)
    print(f"resumed: new rounds {time.monotonic() - began:.1f} s after the command")
    until(lambda: seen().get(str(one), 0) > done, 30)
    assert seen().keys() == {str(one), str(two)}, "a resumed run is the same series"
    assert "resuming from round " in ray_job(cluster, "logs", again)
    for job in (again, second):
        ray_job(cluster, "stop", job)
    for out in (one, two):
        log_of_rounds = [json.loads(line)["round"] for line in (out / "rounds.jsonl").read_text().splitlines()]
        assert log_of_rounds == list(range(len(log_of_rounds)))


def _everything_is_found(prometheus: Prometheus) -> None:
    """Check that every metric of raybcgd, every panel about runs and all Ray nodes are in Prometheus."""
    for metric in METRICS:
        name = f"raybcgd_{metric.name}" + ("_count" if metric.kind == "histogram" else "")
        if metric.name not in WITHOUT_VALUE:
            until(lambda name=name: len({s["metric"]["instance"] for s in prometheus.query(name)}) == 2, 20)
    for shown in expressions():
        own = "raybcgd_" in shown.expr and not any(name in shown.expr for name in WITHOUT_VALUE)
        if own and "ray_" not in shown.expr.replace("raybcgd_", ""):
            until(lambda expr=shown.expr: prometheus.query(expr), 20)
    until(lambda: len(prometheus.query('up{job="ray"} == 1')) >= 3, 30)
    until(lambda: prometheus.query('ray_resources{Name="GPU"}'), 60)


def test_a_submitted_run_is_followed_to_its_end(cluster: Head, config: Path, tmp_path: Path) -> None:
    arguments = ["submit", str(config), "--address", cluster.dashboard, "--out", str(tmp_path / "out"), "--follow"]
    began = time.monotonic()
    command = shlex.join([sys.executable, "-m", "raybcgd", *arguments, "--set", "rounds=4"])
    done = subprocess.run(
        ["script", "--quiet", "--return", "--command", command, "/dev/null"],  # on a terminal
        cwd=ROOT,
        env={**cluster.env, "TERM": "xterm", "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    print(f"four rounds, followed to the end: {time.monotonic() - began:.1f} s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"━.* 4/4 ", re.sub(r"\x1b\[\S*?[a-zA-Z]", "", done.stdout)), "a progress bar"
    assert "round 4/4" not in done.stdout
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    here = run(
        small(rounds=4, data={"phases": {"count": 2, "rounds_per_phase": 1}}), out=tmp_path / "here", progress=False
    )
    assert summary["sha256"] == here.summary["sha256"]


def test_a_sweep_is_submitted_stopped_and_resumed(cluster: Head, config: Path, tmp_path: Path) -> None:
    out, grid = tmp_path / "sweep", ("--", "--grid", "algorithm.lr=0.05,0.1")
    settings = ("--command", "sweep", "--set", "rounds=3000", "--set", "data.phases.count=1")
    first = submit(cluster, config, out, *settings, *grid)
    until(lambda: min(rounds(out / "000"), rounds(out / "001")) > 10, 120)
    ray_job(cluster, "stop", first)
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
    settings = ("--command", "compare", "--set", "data.phases.count=1")
    first = submit(cluster, config, out, *settings, *methods)
    until(lambda: rounds(out / "fedavg") > 10, 120)
    ray_job(cluster, "stop", first)
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
    assert seconds < 20, "most of it is importing torch and Ray on a busy machine; it used to be 32 s"
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: the Ray cluster at ")
    assert "refuses the token" in done.stderr
    assert done.stderr.count("\n") == 1
