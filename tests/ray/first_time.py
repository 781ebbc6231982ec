"""Run the commands of cluster/README.md and cluster/monitoring/README.md on a machine with nothing on it.

`test_first_time.py` runs this in its own namespaces, with an empty /tmp and only a loopback device. So all ports and
paths are the default ones, and no file is changed.
"""

import os
import re
import subprocess
import time
from pathlib import Path

from tests.dashboards.server import Queries, until

CLUSTER = Path("cluster")


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


def first_run(submit: str) -> None:
    """Submit the quickstart and follow it to its end."""
    began = time.monotonic()
    job = subprocess.Popen(["bash", "-c", f"exec {submit}"], stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    lines = []
    for line in job.stdout:
        lines.append(line)
        if "round 1/" in line:
            print(f"from submit to the first round: {time.monotonic() - began:.1f} s")
    assert job.wait(60) == 0, lines
    assert any("round 60/60" in line for line in lines), lines
    print(f"from submit to the end of 60 rounds: {time.monotonic() - began:.1f} s")


def two_runs(submit: str) -> None:
    """Run two jobs at once, and wait until Prometheus has found both, and the three nodes."""
    prometheus = Queries("127.0.0.1:9090")
    more = "--no-wait --set rounds=100000 --set checkpoint.every=50 --set hosts.count=1"
    started = [shell(f"{submit} {more} --out {name}") for name in ("one", "two")]
    jobs = [line.removeprefix("job: ") for text in started for line in text.splitlines() if line.startswith("job: ")]
    runs = {f"{Path.home()}/raybcgd-runs/{name}" for name in ("one", "two")}
    began = time.monotonic()
    until(lambda: {found["metric"]["instance"] for found in prometheus.query("raybcgd_round > 0")} == runs, 120)
    print(f"Prometheus found both runs after {time.monotonic() - began:.1f} s")
    assert [found["value"][1] for found in prometheus.query("raybcgd_hosts_up")] == ["1", "1"]
    until(lambda: len(prometheus.query('count by (instance) (up{job="ray"} == 1)')) >= 3, 120)
    until(lambda: len(prometheus.query("ray_node_mem_total")) == 3, 60)
    assert prometheus.query("ALERTS") == []
    for job in jobs:
        shell(f"ray job stop {job} --address http://127.0.0.1:8265")
    until(lambda: prometheus.query("raybcgd_round") == [], 60)


def main() -> None:
    *start, submit = commands("Your own machine")
    for line in start:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            os.environ[name] = value
        else:
            shell(line)
    node = "--dashboard-agent-listen-port=0 --min-worker-port=0 --max-worker-port=0"  # other machines have these ports
    for _ in range(2):
        shell(f"ray start --address=127.0.0.1:6379 --num-cpus=1 {node}")
    subprocess.Popen(
        f"exec {prometheus_command()} --storage.tsdb.path=/tmp/data > /tmp/prometheus.log 2>&1", shell=True
    )
    first_run(submit)
    two_runs(submit)


if __name__ == "__main__":
    main()
