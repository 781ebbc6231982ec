"""A run without nodes, with a node, and after its death: metrics and progress say at once which hosts are up."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util import list_named_actors
from rich.console import Console

from raybcgd.experiment import run
from raybcgd.report.progress import Display
from tests.conftest import small
from tests.ray.conftest import start_cluster, stop_cluster
from tests.ray.slow import Slow
from tests.record.scraping import scrape

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

SOON = 10.0
"""Seconds until the metrics must show that nodes died. With the tests' settings, Ray notices it after about 1.5 s."""
TABLES = {"rounds": 24, "local": {"epochs": 2, "stack": 0}, "checkpoint": {"every": 0}}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head without room for hosts."""
    started = start_cluster({"num_cpus": 0})
    yield started
    stop_cluster(started)


def hosts(discovery: Path) -> dict[str, float]:
    """Return what the metrics of the run say about its hosts."""
    if not list(discovery.glob("*.json")):
        return {}
    found = {}
    for line in scrape(discovery).splitlines():
        if line.startswith(("raybcgd_hosts_up", "raybcgd_hosts_pending", "raybcgd_hosts_restarted_total")):
            name, _, value = line.partition("{")
            found[name.removeprefix("raybcgd_hosts_")] = float(value.rpartition(" ")[2])
    return found


def seconds_until(condition: Callable[[], bool], limit: float) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit, f"the condition is still false after {limit} s"
        time.sleep(0.1)
    return time.monotonic() - began


def test_hosts_are_live_in_every_phase(cluster: Cluster, out: Path, tmp_path: Path) -> None:
    expected = run(small(**TABLES), module=Slow(), out=tmp_path / "local", progress=False).summary["sha256"]
    discovery, shown = tmp_path / "discovery", StringIO()
    config = small(
        **TABLES,
        engine="ray",
        hosts={"max_count": 1, "max_retries": 20, "start_timeout_seconds": 150},
        metrics={"discovery": str(discovery)},
    )

    def sees(up: int, pending: int, restarted: int) -> Callable[[], bool]:
        return lambda: hosts(discovery) == {"up": up, "pending": pending, "restarted_total": restarted}

    # Ray can add nodes only in the main thread, so the run is in a second thread.
    with ThreadPoolExecutor(1) as executor:
        display = Display(Console(file=shown, width=200))
        future = executor.submit(run, config, module=Slow(), out=out, progress=display)
        seconds_until(sees(0, 1, 0), 150)
        seconds_until(lambda: "starting the hosts: 0 of 1 host up, waiting for a node" in shown.getvalue(), 20)
        node = cluster.add_node(num_cpus=1)
        seconds_until(sees(1, 0, 0), 150)
        seconds_until(lambda: "round 2/24" in shown.getvalue(), 60)
        names = sorted(actor["name"] for actor in list_named_actors(all_namespaces=True))
        cluster.remove_node(node, allow_graceful=False)
        noticed = seconds_until(sees(0, 1, 1), SOON)
        seconds_until(lambda: "waiting for hosts: 0 of 1 host up, waiting for a node" in shown.getvalue(), 20)
        cluster.add_node(num_cpus=1)
        seconds_until(sees(1, 0, 1), 150)
        result = future.result()
    print(f"the metrics showed the loss of the node after {noticed:.1f} s")
    assert result.summary["sha256"] == expected
    assert sum(record.hosts.restarted for record in result.records) == 1
    assert "with room for 1 CPU and 0.5 GiB of memory" in shown.getvalue()
    name = f"raybcgd-{out.parent.name}-{out.name}"
    coordinator, host = names
    assert coordinator.startswith(name)
    assert coordinator.endswith("-coordinator")
    assert host.endswith("-host-0-cpu-0")
    assert ray.experimental.internal_kv._internal_kv_list("raybcgd-") == [], "nothing is left in the control store"
