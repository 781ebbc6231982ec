"""Generate the dashboards, their table of metrics, and the reference of a cluster's values: `make dashboards`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.cluster import cluster
from dashboards.communication import communication
from dashboards.rounds import rounds
from raybcgd.cluster.reference import reference
from raybcgd.record.metrics import METRICS

ROOT = Path(__file__).parent.parent
_INTRO = """# Dashboards

`rounds.json`, `communication.json` and `cluster.json` need Grafana 11 or newer. `make dashboards` generates them and
the table below from the Python files in this folder; a test checks that they are up to date. `cluster/monitoring/`
starts Prometheus and Grafana with everything loaded.

Most metrics are fields of the round record (`raybcgd/record/rounds.py`). Every metric has the labels `run` (the names
of the run folder and its parent, such as `demo/fedavg`; a parent named `runs` is left out), `algorithm`, `dataset` and
`instance` (the path of the run folder). Histograms have `_bucket`, `_sum` and `_count` series. The label `block` is
0, 1, … or `shared`. On Kubernetes and on workers of `ray up`, `raybcgd_run_up` is 1 if a run responds, and
`raybcgd_runs` is the number of runs that have not ended.

| Metric | Type | Description | Panels |
|---|---|---|---|
"""


class Shown(NamedTuple):
    """A PromQL expression and the panel that shows it."""

    dashboard: str
    panel: str
    expr: str


def pages() -> dict[str, str]:
    """Return the dashboards as JSON, by file name."""
    built = {"rounds.json": rounds(), "communication.json": communication(), "cluster.json": cluster()}
    return {name: json.dumps(page, cls=JSONEncoder, indent=2, sort_keys=True) + "\n" for name, page in built.items()}


def expressions() -> Iterator[Shown]:
    """Yield every expression of every panel."""
    for text in pages().values():
        page: dict[str, Any] = json.loads(text)
        for panel in page["panels"]:
            for target in panel.get("targets", ()):
                yield Shown(page["title"].removeprefix("raybcgd: "), panel["title"], target["expr"])


def readme() -> str:
    """Return dashboards/README.md."""
    shown = list(expressions())
    lines = []
    for metric in METRICS:
        pattern = re.compile(rf"\braybcgd_{metric.name}(_bucket|_sum|_count)?\b")
        where = dict.fromkeys(f"{s.dashboard}: {s.panel}" for s in shown if pattern.search(s.expr))
        label = f" by `{metric.by[0]}`" if metric.by else ""
        lines.append(f"| `raybcgd_{metric.name}`{label} | {metric.kind} | {metric.help} | {', '.join(where)} |")
    return _INTRO + "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    """Return all generated files, by path."""
    made = pages()
    here = {ROOT / "dashboards" / name: text for name, text in {**made, "README.md": readme()}.items()}
    return {
        **here,
        ROOT / "raybcgd/cluster/monitoring.json": _packaged(made),
        ROOT / "cluster/VALUES.md": reference(),
    }


def _packaged(made: dict[str, str]) -> str:
    """Return the dashboards and alerts as one file, which `raybcgd cluster render` reads from the installed package."""
    alerts = yaml.safe_load((ROOT / "cluster/monitoring/alerts.yml").read_text())
    boards = {name.removesuffix(".json"): json.loads(text) for name, text in made.items()}
    return json.dumps({**alerts, "dashboards": boards}, separators=(",", ":"), sort_keys=True) + "\n"


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
