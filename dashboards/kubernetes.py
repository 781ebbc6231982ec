"""The dashboards and the alert rules as Kubernetes objects, so that they need not be kept twice."""

from pathlib import Path
from typing import Any

import yaml

_LABELS = {"app.kubernetes.io/name": "raybcgd-monitoring"}
_HEADER = "# Written by `make dashboards`; change dashboards/*.py or cluster/monitoring/alerts.yml instead.\n"


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes long texts as they are, so that they can be read and compared line by line."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _object(api: str, kind: str, name: str, labels: dict[str, str], **rest: Any) -> str:
    document = {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": {**_LABELS, **labels}}, **rest}
    return _HEADER + str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


def objects(pages: dict[str, str], alerts: Path) -> dict[str, str]:
    """The files of cluster/kubernetes/monitoring by name."""
    groups = yaml.safe_load(alerts.read_text())
    for group in groups["groups"]:
        # There, what is scraped are head nodes, which are up before and after their runs.
        group["rules"] = [rule for rule in group["rules"] if rule["alert"] != "RaybcgdRunGone"]
    monitor = {
        "selector": {"matchLabels": {"ray.io/node-type": "head"}},
        "podMetricsEndpoints": [
            {"port": "runs", "interval": "5s", "relabelings": [{"targetLabel": "job", "replacement": "raybcgd"}]},
        ],
    }
    workers = {
        "selector": {"matchExpressions": [{"key": "ray.io/node-type", "operator": "In", "values": ["head", "worker"]}]},
        "podMetricsEndpoints": [{"port": "metrics", "relabelings": [{"targetLabel": "job", "replacement": "ray"}]}],
    }
    made = {
        "podmonitor-runs.yaml": _object("monitoring.coreos.com/v1", "PodMonitor", "raybcgd-runs", {}, spec=monitor),
        "podmonitor-ray.yaml": _object("monitoring.coreos.com/v1", "PodMonitor", "raybcgd-ray", {}, spec=workers),
        "alerts.yaml": _object("monitoring.coreos.com/v1", "PrometheusRule", "raybcgd", {}, spec=groups),
    }
    for name, text in pages.items():
        label = {"grafana_dashboard": "1"}
        made[f"dashboard-{name.removesuffix('.json')}.yaml"] = _object(
            "v1", "ConfigMap", f"raybcgd-dashboard-{name.removesuffix('.json')}", label, data={name: text}
        )
    return made
