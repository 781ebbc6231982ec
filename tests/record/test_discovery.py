"""Discovery files, and the collector that serves all runs of a node from one port."""

import os
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from raybcgd.record.collector import server
from raybcgd.record.discovery import Target, discovery_file, read_targets, write_target
from raybcgd.record.endpoint import Endpoint


def endpoint(discovery: Path, run: str, folder: str, value: float) -> Endpoint:
    """Return an endpoint with one metric of each kind."""
    registry = CollectorRegistry()
    Gauge("raybcgd_round", "Index.", ("run",), registry=registry).labels(run).set(value)
    Counter("raybcgd_bytes_total", "Bytes.", ("run",), registry=registry).labels(run).inc(10 * value)
    Histogram("raybcgd_seconds", "Time.", ("run",), buckets=(1, 2), registry=registry).labels(run).observe(value)
    return Endpoint(registry, "127.0.0.1", 0, discovery_file(str(discovery), run, folder), run, folder)


@contextmanager
def collector(discovery: Path) -> Iterator[str]:
    """Serve a discovery folder and yield the address."""
    started = server("127.0.0.1", 0, discovery)
    threading.Thread(target=started.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{started.server_address[1]}/metrics"
    started.shutdown()
    started.server_close()


def series(address: str) -> dict[tuple[str, str, str], float]:
    """Return the served values by name, instance and bucket."""
    with urllib.request.urlopen(address, timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    names = [family.name for family in families]
    assert len(set(names)) == len(names)  # Prometheus rejects a family that appears twice
    samples = [sample for family in families for sample in family.samples]
    return {(s.name, s.labels.get("instance", ""), s.labels.get("le", "")): s.value for s in samples}


def test_the_collector_serves_all_runs_with_their_numbers(tmp_path: Path) -> None:
    with (
        collector(tmp_path) as address,
        endpoint(tmp_path, "x/a", "/one/x/a", 1),
        endpoint(tmp_path, "x/a", "/two/x/a", 2),
    ):
        found = series(address)
    for folder, value in (("/one/x/a", 1.0), ("/two/x/a", 2.0)):
        assert found["raybcgd_round", folder, ""] == value
        assert found["raybcgd_bytes_total", folder, ""] == 10 * value
        assert found["raybcgd_seconds_sum", folder, ""] == value
        assert found["raybcgd_seconds_bucket", folder, "1.0"] == (value <= 1)
        assert found["raybcgd_run_up", folder, ""] == 1


def test_the_collector_is_up_without_runs_and_tells_which_run_was_killed(tmp_path: Path) -> None:
    with collector(tmp_path / "missing") as address:
        assert series(address) == {("raybcgd_runs", "", ""): 0}
    with endpoint(tmp_path, "ended", "/ended", 1):
        pass
    write_target(discovery_file(str(tmp_path), "killed", "/killed"), Target("127.0.0.1:9", "killed", "/killed"))
    (tmp_path / "broken.json").write_text("{")
    with collector(tmp_path) as address, endpoint(tmp_path, "live", "/live", 1):
        found = series(address)
    up = {instance: value for (name, instance, _), value in found.items() if name == "raybcgd_run_up"}
    assert found["raybcgd_runs", "", ""] == 2
    assert up == {"/killed": 0.0, "/live": 1.0}


def test_runs_with_the_same_last_folders_have_their_own_files(tmp_path: Path) -> None:
    with endpoint(tmp_path, "x/a", "/one/x/a", 1), endpoint(tmp_path, "x/a", "/two/x/a", 2):
        assert [target.instance for target in sorted(read_targets(tmp_path), key=str)] != []
        assert {target.instance for target in read_targets(tmp_path)} == {"/one/x/a", "/two/x/a"}
    assert read_targets(tmp_path) == []


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_other_users_can_announce_runs_and_prometheus_can_read_them(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        file = discovery_file(str(tmp_path / "discovery"), "a")
        write_target(file, Target("127.0.0.1:1", "a", "/a"))
    finally:
        os.umask(before)
    assert file.parent.stat().st_mode & 0o7777 == 0o1777
    assert file.stat().st_mode & 0o777 == 0o644
