"""A real Prometheus with the shipped config discovers a run and returns its numbers."""

import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Gauge

from dashboards.build import ROOT, expressions
from raybcgd.config import Config
from raybcgd.engine.local import LocalSession
from raybcgd.experiment import run
from raybcgd.problem import prepare
from raybcgd.record.collector import server as collector_server
from raybcgd.record.discovery import discovery_file
from raybcgd.record.endpoint import Endpoint
from raybcgd.record.metrics import METRICS, Exported, Exporter, RunInfo
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.settings import MetricsConfig
from raybcgd.storage import RunFolder
from tests.conftest import free_port, small
from tests.dashboards.server import Prometheus, until

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus (Debian's package) is not installed"
)

ROUNDS = 5
FROM_RAY = {
    "ray_resources": {"Name": "GPU", "State": "USED"},
    "ray_node_gpus_utilization": {"GpuIndex": "0"},
    "ray_node_gram_used": {"GpuIndex": "0"},
    "ray_node_cpu_utilization": {},
    "ray_node_mem_used": {},
    "ray_node_mem_total": {},
    "autoscaler_active_nodes": {},
    "autoscaler_pending_nodes": {},
    "autoscaler_recently_failed_nodes": {},
}
"""Metrics of a Ray cluster with GPUs, simulated because the test machine has none."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    server = Prometheus(tmp_path_factory.mktemp("prometheus"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def seen(prometheus: Prometheus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder of a CPU run that is paused after its last round. A second run reports simulated GPU memory."""
    folder = tmp_path_factory.mktemp("runs") / "job"
    config = small(
        rounds=ROUNDS,
        data={"phases": {"count": 2, "rounds_per_phase": 1}},
        cohort={"links": {"median": 1e5}},
        wire={"codec": "qsgd"},
        evaluation={"clients": 3, "metrics": ["top5"]},
        metrics={"discovery": str(prometheus.discovery), "target": 0.01},
    )
    registry = CollectorRegistry()
    for name, labels in FROM_RAY.items():
        gauge = Gauge(name, name, labels, registry=registry)
        (gauge.labels(**labels) if labels else gauge).set(1)
    with Endpoint(registry, "127.0.0.1", 0, prometheus.ray) as ray:
        prometheus.ray.write_text(json.dumps([{"targets": [ray.address], "labels": {"job": "ray"}}]))
        records = _slowly(folder, config)
        with _on_gpus(prometheus, [next(records)]):
            for _ in range(ROUNDS - 1):
                next(records)
            until(lambda: prometheus.values("round") == ROUNDS - 1)
            until(lambda: prometheus.query("raybcgd_hosts_device_memory_bytes"))
            until(lambda: prometheus.query("ray_resources"))
            time.sleep(1.2)  # a rate needs another scrape
            yield folder
        assert next(records, None) is None


def _slowly(folder: Path, config: Config) -> Iterator[RoundRecord]:
    """Run an experiment with pauses; the caller fetches the rounds one by one."""
    folder.mkdir()
    problem, data = prepare(config)
    session = LocalSession(problem, data, RunFolder(folder), resume=False)
    for record in session.records():
        time.sleep(0.6)  # so that Prometheus scrapes every round
        yield record
    session.close()


def _on_gpus(prometheus: Prometheus, records: list[RoundRecord]) -> Endpoint:
    exporter = Exporter(RunInfo("gpus", "fedavg", "images", 10, 100, True), MetricsConfig())
    memory = {
        "device_memory_bytes": 10,
        "device_reserved_bytes": 12,
        "object_store_bytes": 20,
        "object_store_capacity_bytes": 30,
    }
    exporter.replay(r.model_copy(update={"hosts": r.hosts.model_copy(update=memory)}) for r in records)
    return Endpoint(exporter.registry, "127.0.0.1", 0, discovery_file(str(prometheus.discovery), "gpus"), "gpus")


def test_every_expression_of_every_panel_returns_data(prometheus: Prometheus, seen: Path) -> None:
    empty = [shown for shown in expressions() if not prometheus.query(shown.expr)]
    assert not empty


def test_every_alert_is_loaded_and_healthy_and_none_fires(prometheus: Prometheus, seen: Path) -> None:
    shipped = yaml.safe_load((ROOT / "cluster/monitoring/alerts.yml").read_text())["groups"]
    names = [rule["alert"] for group in shipped for rule in group["rules"]]
    until(lambda: all(rule["health"] == "ok" for rule in _rules(prometheus)))
    assert [rule["name"] for rule in _rules(prometheus)] == names
    for group in shipped:
        for rule in group["rules"]:
            assert prometheus.query(rule["expr"]) == [], rule["alert"]
            # A healthy run fires no alert, but both sides of every comparison must have data. No collector is up.
            expr = re.sub(r"raybcgd_runs?(_up)?\b(\{.*?\})?", "up", rule["expr"])
            for side in re.split(r"\b(?:unless|and|or)\b(?: on \(.*?\))?|[<>]=?|==", expr):
                assert re.fullmatch(r"\s*[\d.]+\s*", side) or prometheus.query(side.strip()), (rule["alert"], side)


def _rules(prometheus: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]


def test_the_values_match_the_log(prometheus: Prometheus, seen: Path) -> None:
    """Metrics are named after the fields of the log, so a new field needs no change here."""
    log = [json.loads(line) for line in (seen / "rounds.jsonl").read_text().splitlines()]
    assert len(log) == ROUNDS
    columns = _columns(log)
    seconds = columns["timing_seconds"]
    clients = [client["seconds"] for line in log for client in line["participants"]]
    expected: dict[str, Any] = {
        **{m.name: _expected(m, columns) for m in METRICS if m.name.removesuffix("_total") in columns},
        "quality_client_accuracy": columns["quality_clients"][-1],
        "participants": len(log[-1]["participants"]),
        "client_seconds_count": len(clients),
        "client_seconds_sum": sum(clients),
        "dropped_clients_total": {"deadline": 0, "error": 0},
        "timing_last_round_seconds": seconds[-1],
        "timing_round_seconds_count": ROUNDS,
        "timing_round_seconds_sum": sum(seconds),
        "round_timestamp_seconds": columns["timing_finished_at"][-1],
        "planned_rounds": ROUNDS,
        "target_accuracy": 0.01,
        "target_rounds": 1,
        "target_upload_d": columns["traffic_upload_d_total"][0],
    }
    labels = {metric.name: metric.by[0] for metric in METRICS if metric.by}
    for name, value in expected.items():
        assert prometheus.values(name, labels.get(name)) == pytest.approx(value), name
    unchecked = {m.name for m in METRICS} - {re.sub("_(sum|count)$", "", name) for name in expected}
    assert unchecked == {
        "parameters",
        "start_timestamp_seconds",
        "checkpoint_timestamp_seconds",
        "exporter_seconds_total",
        "hosts_object_store_bytes",
        "hosts_object_store_capacity_bytes",
        "hosts_device_memory_bytes",
        "hosts_device_reserved_bytes",
    }


def _columns(log: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of every field by round, without fields that are null."""
    flat = [
        {
            f"{group}_{name}": value
            for group in line
            if isinstance(line[group], dict)
            for name, value in line[group].items()
        }
        for line in log
    ]
    columns = {name: [line[name] for line in lines] for lines in (log, flat) for name in lines[0]}
    return {name: values for name, values in columns.items() if values[-1] is not None}


def _expected(metric: Exported, columns: dict[str, list[Any]]) -> Any:
    """Return a metric after the last round: the sum of a counter, the last value of a gauge."""
    values = columns[metric.name.removesuffix("_total")]
    if metric.kind == "counter":
        values = [[sum(column) for column in zip(*values, strict=True)] if metric.by else sum(values)]
    if not isinstance(values[-1], list):
        return values[-1]
    keys = [str(k) for k in range(len(values[-1]))]
    return dict(zip([*keys[:-1], "shared"] if metric.by == ("block",) else keys, values[-1], strict=True))


def test_labels_tell_runs_apart(prometheus: Prometheus, seen: Path) -> None:
    labels = [series["metric"] for series in prometheus.query("raybcgd_round")]
    assert {(m["algorithm"], m["dataset"], m["job"]) for m in labels} == {
        ("fedbcgd+", "digits", "raybcgd"),
        ("fedavg", "images", "raybcgd"),
    }
    assert f"{seen.parent.name}/job" in {m["run"] for m in labels}


def test_a_finished_run_is_no_longer_a_target(prometheus: Prometheus, tmp_path: Path) -> None:
    run(small(rounds=1, metrics={"discovery": str(prometheus.discovery)}), out=tmp_path / "short")
    assert not list(prometheus.discovery.glob("*short*"))


def test_a_resumed_run_is_one_series_and_runs_of_the_same_name_are_two(prometheus: Prometheus) -> None:
    def endpoint(folder: str, round_index: int) -> Endpoint:
        registry = CollectorRegistry()
        Gauge("raybcgd_round", "A metric.", ("run",), registry=registry).labels("a/b").set(round_index)
        return Endpoint(
            registry, "127.0.0.1", 0, discovery_file(str(prometheus.discovery), "a/b", folder), "a/b", folder
        )

    def rounds() -> dict[str, float]:
        found = prometheus.query('raybcgd_round{run="a/b"}')
        return {series["metric"]["instance"]: float(series["value"][1]) for series in found}

    killed = endpoint("/one/a/b", 3)
    killed.__enter__()  # never exited, so its file stays
    until(lambda: rounds() == {"/one/a/b": 3})
    with endpoint("/one/a/b", 4), endpoint("/two/a/b", 7):
        until(lambda: rounds() == {"/one/a/b": 4, "/two/a/b": 7})
        assert len(prometheus.query('raybcgd_round{run="a/b"}')) == 2


def test_runs_on_workers_of_ray_up_are_found_through_their_collectors(tmp_path: Path) -> None:
    """Ray's file lists the nodes by their metrics port: 8081 on workers. The other nodes have no collector."""
    discovery, port = tmp_path / "on-the-worker", free_port()
    registry = CollectorRegistry()
    Gauge("raybcgd_round", "A metric.", ("run",), registry=registry).labels("sweep/000").set(3)
    (tmp_path / "ray").mkdir()
    targets = ["127.0.0.1:8080", "127.0.0.1:8081", "127.0.0.1:44217"]
    file = tmp_path / "ray/prom_metrics_service_discovery.json"
    file.write_text(json.dumps([{"targets": targets, "labels": {"job": "ray"}}]))
    server = Prometheus(tmp_path, {":9464": f":{port}"})
    collector = collector_server("127.0.0.1", port, discovery)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    run_file = discovery_file(str(discovery), "sweep/000", "/shared/sweep/000")
    try:
        with Endpoint(registry, "127.0.0.1", 0, run_file, "sweep/000", "/shared/sweep/000"):
            until(lambda: server.query('raybcgd_round{job="raybcgd-workers"}'))
            (found,) = server.query("raybcgd_round")
            assert found["metric"]["instance"] == "/shared/sweep/000"
            assert found["value"][1] == "3"
            assert len(server.query('up{job="raybcgd-workers"}')) == 1
    finally:
        collector.shutdown()
        server.close()
