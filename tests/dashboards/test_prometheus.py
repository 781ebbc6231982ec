"""The real Prometheus with the shipped config finds a run, answers every expression, and its numbers are the run's."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Gauge

from dashboards.build import ROOT, expressions
from raybcgd.config import Config
from raybcgd.engine.local import LocalPool
from raybcgd.experiment import run
from raybcgd.problem import prepare
from raybcgd.record.endpoint import Endpoint, discovery_file
from raybcgd.record.metrics import Exporter, RunLabels, RunPlan
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.settings import MetricsConfig
from raybcgd.server.loop import Experiment
from raybcgd.storage import RunFolder
from tests.conftest import small
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
"""What a Ray cluster of GPUs exports, which this machine has not."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    server = Prometheus(tmp_path_factory.mktemp("prometheus"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def seen(prometheus: Prometheus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run on CPUs that waits after its last round while the tests look at it, and one on made-up GPUs."""
    folder = tmp_path_factory.mktemp("runs") / "job"
    config = small(
        rounds=ROUNDS,
        data={"phases": {"count": 2, "rounds_per_phase": 1}},
        cohort={"links": {"median": 1e5}},
        wire={"codec": "qsgd"},
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
            until(lambda: prometheus.query("raybcgd_device_memory_bytes"))
            until(lambda: prometheus.query("ray_resources"))
            time.sleep(1.2)  # what is a rate needs another scrape
            yield folder
        assert next(records, None) is None


def _slowly(folder: Path, config: Config) -> Iterator[RoundRecord]:
    """A run of which each round is fetched by whoever wants it."""
    folder.mkdir()
    problem, data = prepare(config)
    experiment = Experiment(problem, data, RunFolder(folder), resume=False)
    pool = LocalPool(problem, data, experiment.state_address)
    for record in experiment.run(pool):
        time.sleep(0.6)  # so that Prometheus sees every round
        yield record
    pool.close()


def _on_gpus(prometheus: Prometheus, records: list[RoundRecord]) -> Endpoint:
    exporter = Exporter(RunLabels("gpus", "fedavg", "pictures"), MetricsConfig(), RunPlan(10, 100, True))
    update = {"device_memory_bytes": 10, "object_store_bytes": 20, "object_store_capacity_bytes": 30}
    exporter.take_up(record.model_copy(update=update) for record in records)
    return Endpoint(exporter.registry, "127.0.0.1", 0, discovery_file(str(prometheus.discovery), "gpus"))


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
            # A healthy run returns nothing; that is not for want of data on either side of a comparison.
            for side in re.split(r"\bunless\b|[<>]=?|==", rule["expr"]):
                assert re.fullmatch(r"\s*[\d.]+\s*", side) or prometheus.query(side.strip()), (rule["alert"], side)


def _rules(prometheus: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]


def test_the_numbers_are_those_of_the_log(prometheus: Prometheus, seen: Path) -> None:
    log = [json.loads(line) for line in (seen / "rounds.jsonl").read_text().splitlines()]
    last = log[-1]
    assert len(log) == ROUNDS

    def summed(key: str) -> float:
        return float(sum(line[key] for line in log))

    expected: dict[str, float] = {
        "round": last["round"],
        "accuracy_ratio": last["accuracy"],
        "loss": last["loss"],
        "train_loss": last["train_loss"],
        "learning_rate": last["lr"],
        "last_round_seconds": last["seconds"],
        "round_seconds_sum": summed("seconds"),
        "round_seconds_count": ROUNDS,
        "client_seconds_count": sum(len(line["participants"]) for line in log),
        "client_seconds_sum": sum(p["seconds"] for line in log for p in line["participants"]),
        "simulated_seconds": last["simulated_seconds"],
        "uploaded_floats_total": summed("upload_floats"),
        "uploaded_bytes_total": summed("upload_bytes"),
        "uploaded_model_sizes_total": last["upload_d_total"],
        "downloaded_floats_total": summed("download_floats"),
        "downloaded_bytes_total": summed("download_bytes"),
        "compression_ratio": last["compression_ratio"],
        "participants": len(last["participants"]),
        "hosts": last["hosts"],
        "pending_hosts": last["hosts_pending"],
        "queued_jobs": last["queued"],
        "retried_jobs_total": 0,
        "rehomed_clients_total": 0,
        "restarted_hosts_total": 0,
        "state_memory_bytes": last["state_memory_bytes"],
        "state_disk_bytes": last["state_disk_bytes"],
        "round_timestamp_seconds": last["finished_at"],
        "planned_rounds": ROUNDS,
        "target_rounds": 1,
        "target_model_sizes": log[0]["upload_d_total"],
    }
    assert {name: prometheus.values(name) for name in expected} == pytest.approx(expected)
    blocks = [*map(str, range(len(last["movement"]) - 1)), "shared"]
    by_block = {
        "drift_diversity": last["drift_diversity"],
        "movement_norm": last["movement"],
        "momentum_norm": last["server_norms"]["v"],
        "control_variate_norm": last["server_norms"]["c"],
        "block_uploaded_floats_total": _columns(log, "upload_floats_by_block"),
        "block_uploaded_bytes_total": _columns(log, "upload_bytes_by_block"),
        "block_downloaded_floats_total": _columns(log, "download_floats_by_block"),
    }
    for name, values in by_block.items():
        assert prometheus.values(name, "block") == pytest.approx(dict(zip(blocks, values, strict=True))), name
    assert prometheus.values("phase_seconds", "phase") == pytest.approx(last["phase_seconds"])
    assert prometheus.values("phase_accuracy_ratio", "data_phase") == pytest.approx(
        {str(k): value for k, value in enumerate(last["accuracy_by_phase"])}
    )


def _columns(log: list[dict[str, Any]], key: str) -> list[float]:
    return [sum(column) for column in zip(*(line[key] for line in log), strict=True)]


def test_labels_tell_runs_apart(prometheus: Prometheus, seen: Path) -> None:
    labels = [series["metric"] for series in prometheus.query("raybcgd_round")]
    assert {(m["algorithm"], m["dataset"], m["job"]) for m in labels} == {
        ("fedbcgd+", "digits", "raybcgd"),
        ("fedavg", "pictures", "raybcgd"),
    }
    assert f"{seen.parent.name}/job" in {m["run"] for m in labels}


def test_a_run_that_ends_is_no_target_any_more(prometheus: Prometheus, tmp_path: Path) -> None:
    run(small(rounds=1, metrics={"discovery": str(prometheus.discovery)}), out=tmp_path / "short")
    assert not list(prometheus.discovery.glob("*short*"))
