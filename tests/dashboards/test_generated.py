"""The generated files are up to date and complete, and every metric has a panel."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.build import ROOT, expressions, files, pages
from raybcgd.config import Config
from raybcgd.config.explain import section_of
from raybcgd.record.metrics import METRICS

MONITORING = ROOT / "cluster/monitoring"


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_generated_files_are_up_to_date(path: Path) -> None:
    assert path.read_text() == files()[path], "run `make dashboards`"


def test_every_metric_has_a_help_text_and_a_panel() -> None:
    lines = (ROOT / "dashboards/README.md").read_text().splitlines()
    for metric in METRICS:
        (line,) = [line for line in lines if line.startswith(f"| `raybcgd_{metric.name}`")]
        _, _, _, description, panels, _ = line.split("|")
        assert description.strip() == metric.help
        assert metric.help.endswith(".")
        assert panels.strip(), f"no panel shows {metric.name}"


def test_panels_and_alerts_use_only_existing_metrics() -> None:
    known = {f"raybcgd_{metric.name}{end}" for metric in METRICS for end in ("", "_bucket", "_sum", "_count")}
    known |= {"raybcgd_run_up", "raybcgd_runs"}  # of the collector
    used = [shown.expr for shown in expressions()]
    used += [rule["expr"] for group in _alerts() for rule in group["rules"]]
    assert {name for expr in used for name in re.findall(r"raybcgd_\w+", expr)} <= known


def test_metric_names_follow_the_prometheus_conventions() -> None:
    for metric in METRICS:
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        if metric.kind == "histogram":
            assert metric.name.endswith("_seconds")


@pytest.mark.parametrize("name", pages())
def test_panels_are_complete_and_do_not_overlap(name: str) -> None:
    page: dict[str, Any] = json.loads(pages()[name])
    assert [v["name"] for v in page["templating"]["list"]] == ["datasource", "algorithm", "run"]
    ids = [panel["id"] for panel in page["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in page["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} overlaps another panel"
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names)


def test_blocks_are_shown_as_heat_maps() -> None:
    heat_maps = {
        panel["title"]
        for text in pages().values()
        for panel in json.loads(text)["panels"]
        if panel["type"] == "heatmap"
    }
    assert {"Drift diversity by block", "Movement by block", "Upload rate by block"} <= heat_maps


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian's prometheus) is not installed")
def test_the_alert_rules_pass_their_unit_tests() -> None:
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=MONITORING, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_unit_test() -> None:
    tests = (MONITORING / "alerts_test.yml").read_text()
    for group in _alerts():
        for rule in group["rules"]:
            assert rule["alert"] in tests
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["description"]


def test_every_alert_has_a_section_in_the_runbook() -> None:
    runbook = (ROOT / "docs/runbook.md").read_text()
    alerts = [rule for group in _alerts() for rule in group["rules"]]
    assert re.findall(r"^## (.+)$", runbook, re.MULTILINE) == [rule["alert"] for rule in alerts]
    for rule in alerts:
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
    tables = {name: section_of(Config, name) for name in Config.model_fields}
    for table, name in re.findall(r"`([a-z]+)\.([a-z_]+)`", runbook):
        section = tables.get(table)
        assert table in ("workers", "algorithm") or (section is not None and name in section.model_fields), name


def test_clients_that_move_to_balance_the_load_are_no_failures() -> None:
    lines = (ROOT / "dashboards/README.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("| `raybcgd_hosts_rehomed_clients_total`")]
    assert "Failures" not in line


def test_memory_of_gpus_is_shown_in_the_unit_of_ray() -> None:
    panels = [panel for text in pages().values() for panel in json.loads(text)["panels"]]
    (panel,) = [p for p in panels if any("ray_node_gram_used" in t["expr"] for t in p.get("targets", ()))]
    assert panel["fieldConfig"]["defaults"]["unit"] == "mbytes"  # Grafana's name of MiB


def test_the_compose_file_mounts_existing_files_and_listens_on_loopback_only() -> None:
    compose = yaml.safe_load((MONITORING / "compose.yaml").read_text())
    for service in compose["services"].values():
        assert "ports" not in service
        for volume in service["volumes"]:
            source, _ = re.sub(r"\$\{\w+:-(.+?)\}", r"\1", volume).split(":", 1)  # with the default of a variable
            if source.startswith("/"):
                assert source == "/tmp", "Docker would create a missing folder as root, and Ray could not start"
            if source.startswith("."):
                assert (MONITORING / source).exists(), source
    assert "--web.listen-address=127.0.0.1:9090" in compose["services"]["prometheus"]["command"]
    assert compose["services"]["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert (
        "--web.listen-address=127.0.0.1:9093 --cluster.listen-address="
        in compose["services"]["alertmanager"]["command"][0]
    )
    source = yaml.safe_load((MONITORING / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    assert source["datasources"][0]["url"] == "http://127.0.0.1:9090"


def _alerts() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return groups
