"""Run the commands of cluster/README.md and cluster/monitoring/README.md on a machine with nothing on it.

`test_first_time.py` runs this in its own namespaces, with an empty /tmp and only a loopback device. So all ports and
paths are the default ones, and no file is changed. The cluster has a token and three nodes: the head of the README, a
node with a logical GPU, and a node that starts like a worker of `ray up`, with its own discovery folder.
"""

import json
import os
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

from dashboards.build import expressions
from raybcgd.record.metrics import METRICS
from tests.dashboards.server import Queries, until

CLUSTER = Path("cluster")
RUNS = Path.home() / "raybcgd-runs"
DASHBOARD = "http://127.0.0.1:8265"
PROMETHEUS = Queries("127.0.0.1:9090")
NOT_HERE = {
    # Hosts on logical GPUs train on the CPU.
    "raybcgd_hosts_device_memory_bytes",
    "raybcgd_hosts_device_reserved_bytes",
    # Ray reads these from the driver of a GPU.
    "ray_node_gpus_utilization",
    "ray_node_gram_used",
    # Ray exports this for nodes that its autoscaler starts. These were started by hand.
    "autoscaler_recently_failed_nodes",
}
"""The metrics that do not exist on a machine without GPUs and without an autoscaler."""
EVERY_METRIC = {
    "data.phases.count": 2,
    "data.phases.rounds_per_phase": 1,
    "cohort.links.median": 1e5,
    "evaluation.clients": 3,
    "evaluation.metrics": '["top5"]',
    "metrics.target": 0.01,
}
"""Settings with which a run has all metrics."""
ON_A_GPU = {"hosts.device": "gpu", "hosts.logical_gpus": "true", "hosts.num_gpus": 0.5, "hosts.count": 1}
ENDLESS = {"rounds": 100_000, "checkpoint.every": 50, "metrics.port": 9500, "hosts.spread": "false"}
"""Both runs want the same port."""
WORKER = '{"worker": 1}'
"""The resource of the node that starts like a worker of `ray up`."""


def commands(heading: str) -> list[str]:
    """Return the lines of the first code block below a heading of cluster/README.md, without comments."""
    section = (CLUSTER / "README.md").read_text().split(f"\n## {heading}\n")[1]
    return [line.partition(" #")[0].strip() for line in section.split("```")[1].strip().splitlines()]


def prometheus_command() -> str:
    """Return the command that starts Prometheus without Docker."""
    (found,) = re.findall(r"`(prometheus [^`]+)`", (CLUSTER / "monitoring/README.md").read_text())
    return str(found)


def shell(line: str) -> str:
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def options(*settings: dict[str, Any]) -> str:
    return " ".join(f"--set {shlex.quote(f'{key}={value}')}" for table in settings for key, value in table.items())


def start(submit: str, out: str) -> str:
    """Submit an endless run and wait for its first round. Return the id of its job."""
    began = time.monotonic()
    printed = shell(f"{submit} --no-wait --out {out} {options(ENDLESS, ON_A_GPU, EVERY_METRIC)}")
    (job,) = re.findall("^job: (.+)$", printed, re.MULTILINE)
    until(lambda: log(RUNS / out), 120)
    print(f"{out}: {time.monotonic() - began:.1f} s from submit to the first round")
    return str(job)


def stop(job: str) -> None:
    shell(f"ray job stop {job} --address {DASHBOARD}")


def log(run: Path) -> list[dict[str, Any]]:
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True) if (run / "rounds.jsonl").exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def first_run(submit: str) -> None:
    """Submit the quickstart and follow it to its end. It gives the weights of a local run."""
    began = time.monotonic()
    job = subprocess.Popen(["bash", "-c", f"exec {submit}"], stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    lines = []
    for line in job.stdout:
        lines.append(line)
        if "round 1/" in line:
            print(f"quickstart: {time.monotonic() - began:.1f} s from submit to the first round")
    assert job.wait(60) == 0, lines
    assert any("round 60/60" in line for line in lines), lines
    print(f"quickstart: {time.monotonic() - began:.1f} s from submit to the end of 60 rounds")
    shell("raybcgd train jobs/configs/quickstart.toml --set engine=local --out /tmp/here")
    (run,) = RUNS.iterdir()
    cluster, local = (json.loads((folder / "summary.json").read_text()) for folder in (run, Path("/tmp/here")))
    assert cluster["sha256"] == local["sha256"]


def add_nodes() -> None:
    """Add two nodes with a logical GPU each. The second one starts like a worker of `ray up`."""
    # Nodes on other machines would not need these options.
    node = "--num-cpus=1 --num-gpus=1 --dashboard-agent-listen-port=0 --min-worker-port=0 --max-worker-port=0"
    shell(f"ray start --address=127.0.0.1:6379 {node}")
    worker = yaml.safe_load((CLUSTER / "ray-up/aws/cluster.yaml").read_text())["worker_start_ray_commands"]
    ray, collector = worker[-2:]
    folders = "mkdir -p -m 1777 /tmp/on-the-worker /tmp/raybcgd-discovery"
    own = "export RAY_HEAD_IP=127.0.0.1; mount --bind /tmp/on-the-worker /tmp/raybcgd-discovery"
    lines = f"{own} && {ray} {node} --resources='{WORKER}' && {{ {collector} }}"
    shell(f"{folders} && unshare --mount bash -c {shlex.quote(lines)}")


def run_on_the_worker() -> str:
    """Submit a run whose driver is on the worker, as the points of a sweep are. Return the id of its job."""
    submit = f"ray job submit --address {DASHBOARD} --no-wait --entrypoint-resources '{WORKER}'"
    settings = options({"engine": "local", "rounds": 100_000})
    train = f"python -m raybcgd train {Path.cwd()}/jobs/configs/quickstart.toml --out worker {settings}"
    return str(re.findall("'(raysubmit_.+?)'", shell(f"{submit} -- {train}"))[0])


def names(expr: str) -> set[str]:
    """Return the metrics in an expression."""
    return set(re.findall(r"\b(?:raybcgd|ray|autoscaler)_\w+", expr))


def instances(name: str) -> set[str]:
    return {series["metric"]["instance"] for series in PROMETHEUS.query(name)}


def everything_is_found(runs: set[str]) -> None:
    """Wait until Prometheus has every metric of both runs and every metric in a panel or an alert rule."""
    began = time.monotonic()
    until(lambda: instances('raybcgd_round{job="raybcgd"} > 0') == runs, 60)
    print(f"Prometheus found both runs after {time.monotonic() - began:.1f} s")
    exported = {
        f"raybcgd_{metric.name}{end}"
        for metric in METRICS
        for end in (("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",))
    }
    groups = yaml.safe_load((CLUSTER / "monitoring/alerts.yml").read_text())["groups"]
    rules = [rule["expr"] for group in groups for rule in group["rules"]]
    shown = [panel.expr for panel in expressions()]
    used = set().union(*map(names, rules + shown))
    missing: set[str] = set()

    def all_found() -> bool:
        missing.clear()
        missing.update(name for name in exported - NOT_HERE if instances(f'{name}{{job="raybcgd"}}') != runs)
        missing.update(name for name in used - NOT_HERE if not PROMETHEUS.query(name))
        missing.update(expr for expr in shown if names(expr) - NOT_HERE and not PROMETHEUS.query(expr))
        return not missing

    try:
        until(all_found, 90)
    except AssertionError:
        raise AssertionError(f"Prometheus does not find {sorted(missing)}") from None
    print(f"Prometheus found all {len(exported | used) - len(NOT_HERE)} metrics after {time.monotonic() - began:.1f} s")
    assert not [name for name in NOT_HERE if PROMETHEUS.query(name)], "they exist here"
    assert exported | used >= NOT_HERE


def every_node_is_found() -> None:
    on_the_worker = {str(RUNS / "worker")}
    until(lambda: len(PROMETHEUS.query("ray_node_mem_total")) == 3, 60)
    until(lambda: len(PROMETHEUS.query('up{job="ray"} == 1')) >= 5, 60)  # with the autoscaler and the dashboard
    until(lambda: instances('up{job="raybcgd-workers"}') == {"127.0.0.1:9464"}, 60)
    until(lambda: instances("raybcgd_run_up == 1") == on_the_worker, 60)
    until(lambda: instances('raybcgd_round{job="raybcgd-workers"}') == on_the_worker, 60)
    assert [series["value"][1] for series in PROMETHEUS.query('raybcgd_hosts_up{job="raybcgd"}')] == ["1", "1"]
    rules = [rule for group in PROMETHEUS.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}
    until(lambda: PROMETHEUS.query("ALERTS") == [], 30)  # hosts were pending until a moment ago


def two_runs_on_one_node() -> None:
    listed = json.loads(shell(f"ray list actors --address {DASHBOARD} --filter state=ALIVE --format json"))
    coordinators = [actor for actor in listed if actor["class_name"] == "Coordinator"]
    assert len(coordinators) == 2
    assert len({actor["node_id"] for actor in coordinators}) == 1, "both runs are on one node"
    jobs = shell(f"COLUMNS=300 raybcgd jobs --address {DASHBOARD}")
    progress = re.findall(rf"│ running +│ (\d+)/{ENDLESS['rounds']} +│ (\d+\.\d)% +│ (\d+\.\d\d) +│", jobs)
    assert len(progress) == 2, jobs
    assert all(int(done) > 0 and float(seconds) < 60 for done, _, seconds in progress)


def stopped(job: str, run: Path, others: set[str]) -> None:
    """Stop a run. It leaves the metrics at once, and its last ones are the numbers of its log."""
    began = time.monotonic()
    stop(job)
    until(lambda: instances('raybcgd_round{job="raybcgd"}') == others, 30)
    print(f"stopped and out of the metrics after {time.monotonic() - began:.1f} s")
    until(lambda: PROMETHEUS.query('up{job="raybcgd", run!=""} == 0') == [], 15)
    text, records = shell(f"ray job logs {job} --address {DASHBOARD}"), log(run)
    assert f"ended by SIGTERM after {len(records)} rounds; continue from the last checkpoint" in text
    assert "Traceback" not in text
    assert "*** SIGTERM received" not in text, "Ray's own handler dumps the stack"

    def last(name: str) -> float:
        (series,) = PROMETHEUS.query(f'last_over_time(raybcgd_{name}{{instance="{run}"}}[10m])')
        return float(series["value"][1])

    scraped = records[: int(last("round")) + 1]
    assert last("traffic_upload_floats_total") == sum(record["traffic"]["upload_floats"] for record in scraped)
    assert last("hosts_object_store_capacity_bytes") == scraped[-1]["hosts"]["object_store_capacity_bytes"] > 0
    assert last("hosts_object_store_bytes") == scraped[-1]["hosts"]["object_store_bytes"]


def resumed(submit: str, run: Path) -> None:
    """Resume a stopped run on a terminal, and follow it to its end."""
    began, before = time.monotonic(), len(log(run))
    total = before + 200
    ends = options(ENDLESS | {"rounds": total}, ON_A_GPU, EVERY_METRIC)
    command = f"{submit} --resume auto --follow --out {run.relative_to(RUNS)} {ends}"
    on_a_terminal = ["script", "--quiet", "--return", "--command", command, "/dev/null"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    following = subprocess.Popen(on_a_terminal, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    until(lambda: len(log(run)) > before, 120)
    print(f"resumed: {time.monotonic() - began:.1f} s from submit to a new round")
    series = 'raybcgd_round{job="raybcgd", run="x/run"}'
    until(lambda: PROMETHEUS.query(f'{series} >= {before} and {series[:-1]}, instance="{run}"}}'), 30)
    assert len(PROMETHEUS.query(series)) == 2, "a resumed run is the same series"
    printed = re.sub(r"\x1b\[\S*?[a-zA-Z]", "", following.communicate(timeout=180)[0])
    assert following.returncode == 0, printed
    assert re.search(rf"━.* {total}/{total} ", printed), "a progress bar"
    assert f"round {total}/{total}" not in printed
    assert "resuming from round " in printed
    assert [record["round"] for record in log(run)] == list(range(total))


def main() -> None:
    *prepare, submit = commands("Your own machine")
    for line in prepare:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            os.environ[name] = value
        else:
            shell(line)
    subprocess.Popen(
        f"exec {prometheus_command()} --storage.tsdb.path=/tmp/data > /tmp/prometheus.log 2>&1", shell=True
    )
    first_run(submit)
    add_nodes()
    one, two = RUNS / "one/x/run", RUNS / "two/x/run"  # with the same last folder names
    first, second = start(submit, "one/x/run"), start(submit, "two/x/run")
    on_the_worker = run_on_the_worker()
    everything_is_found({str(one), str(two)})
    every_node_is_found()
    two_runs_on_one_node()
    stop(on_the_worker)
    stopped(first, one, {str(two)})
    resumed(submit, one)
    stop(second)
    until(lambda: PROMETHEUS.query("raybcgd_round") == [], 60)
    assert not list(Path("/tmp/raybcgd-discovery").iterdir())


if __name__ == "__main__":
    main()
