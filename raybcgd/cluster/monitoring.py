"""The objects through which the Prometheus operator, Alertmanager and Grafana watch a cluster."""

import json
from importlib.resources import files

from raybcgd.cluster.pods import LABEL, Object
from raybcgd.cluster.settings import MonitoringValues, Values

_API = "monitoring.coreos.com/v1"


def monitoring_objects(monitoring: MonitoringValues, values: Values) -> dict[str, list[Object]]:
    """Return the objects by file name."""
    content = json.loads((files("raybcgd.cluster") / "monitoring.json").read_text())  # written by `make dashboards`
    labels = {LABEL: f"{values.name}-monitoring", "release": monitoring.release}

    def one(api: str, kind: str, name: str, more: dict[str, str] | None = None, **rest: Object) -> list[Object]:
        metadata = {"name": name, "labels": {**labels, **(more or {})}}
        return [{"apiVersion": api, "kind": kind, "metadata": metadata, **rest}]

    made = {
        "podmonitor-ray.yaml": one(_API, "PodMonitor", f"{values.name}-ray", spec=_ray(values)),
        "podmonitor-runs.yaml": one(_API, "PodMonitor", f"{values.name}-runs", spec=_runs(values)),
        "alerts.yaml": one(_API, "PrometheusRule", values.name, spec={"groups": content["groups"]}),
    }
    if monitoring.alert_secret:
        spec = _receiver(monitoring.alert_secret)
        made["alertmanager.yaml"] = one("monitoring.coreos.com/v1alpha1", "AlertmanagerConfig", values.name, spec=spec)
    for name, page in content["dashboards"].items():
        text = json.dumps(page, separators=(",", ":"), ensure_ascii=False)
        title, sidecar = f"{values.name}-dashboard-{name}", {"grafana_dashboard": "1"}
        made[f"dashboard-{name}.yaml"] = one("v1", "ConfigMap", title, sidecar, data={f"{title}.json": text})
    return made


def _ray(values: Values) -> Object:
    """Scrape Ray's metrics on every pod. Only the head has the autoscaler's and the dashboard's ports."""
    return {
        "selector": {"matchLabels": {LABEL: values.name}},
        "podMetricsEndpoints": [
            {"port": port, "relabelings": [{"targetLabel": "job", "replacement": "ray"}]}
            for port in ("metrics", "autoscaler", "dash-metrics")
        ],
    }


def _runs(values: Values) -> Object:
    """Scrape the sidecars. They add the label `instance`, which stays the same when a run resumes."""
    endpoint = {
        "port": "runs",
        "interval": "5s",
        "honorLabels": True,
        "relabelings": [{"targetLabel": "job", "replacement": "raybcgd"}],
    }
    return {"selector": {"matchLabels": {LABEL: values.name}}, "podMetricsEndpoints": [endpoint]}


def _receiver(secret: str) -> Object:
    """Send this cluster's alerts to a webhook. The operator adds a matcher for the namespace."""
    webhook = {"urlSecret": {"name": secret, "key": "url"}, "sendResolved": True}
    return {
        "route": {
            "receiver": "webhook",
            "groupBy": ["alertname", "run"],
            "groupWait": "30s",
            "groupInterval": "5m",
            "repeatInterval": "12h",
            "matchers": [{"name": "alertname", "value": "Raybcgd.*", "matchType": "=~"}],
        },
        "receivers": [{"name": "webhook", "webhookConfigs": [webhook]}],
    }
