"""A real Prometheus server for the tests, with the shipped config."""

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dashboards.build import ROOT
from tests.conftest import free_port

VARIABLES = {"$run": ".*", "$algorithm": ".*", "$__rate_interval": "30s"}


class Queries:
    """Queries to a Prometheus server."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **parameters: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        for name, value in VARIABLES.items():
            expr = expr.replace(name, value)
        found: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return found


class Prometheus(Queries):
    """A Prometheus server on a free loopback port."""

    def __init__(
        self, folder: Path, changes: dict[str, str] | None = None, alert_changes: dict[str, str] | None = None
    ) -> None:
        super().__init__(f"127.0.0.1:{free_port()}")
        self.discovery, self.ray = folder / "discovery", folder / "ray/prom_metrics_service_discovery.json"
        config = (ROOT / "cluster/monitoring/prometheus.yml").read_text()
        # Change only the paths and the intervals.
        for shipped, here in {
            "/tmp/raybcgd-discovery": str(self.discovery),
            "/tmp/ray/session_latest": str(folder / "ray" / "session_latest"),
            "/tmp/ray/": f"{folder}/ray/",
            "scrape_interval: 5s": "scrape_interval: 500ms",
            "evaluation_interval: 15s": "evaluation_interval: 1s",
            "refresh_interval: 5s": "refresh_interval: 1s",
            "refresh_interval: 30s": "refresh_interval: 1s",
            **(changes or {}),
        }.items():
            assert shipped in config
            config = config.replace(shipped, here)
        (folder / "prometheus.yml").write_text(config)
        alerts = (ROOT / "cluster/monitoring/alerts.yml").read_text()
        for shipped, here in (alert_changes or {}).items():
            assert shipped in alerts
            alerts = alerts.replace(shipped, here)
        (folder / "alerts.yml").write_text(alerts)
        self._log = (folder / "prometheus.log").open("w")
        self.process = subprocess.Popen(
            [
                "prometheus",
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                f"--web.listen-address={self.address}",
            ],
            cwd=folder,
            stdout=self._log,
            stderr=self._log,
        )

    def values(self, metric: str, by: str | None = None) -> Any:
        """Return the metric of the test run: one value, or one per value of a label."""
        found = {
            s["metric"].get(by or "", ""): float(s["value"][1])
            for s in self.query(f'raybcgd_{metric}{{dataset="digits"}}')
        }
        return found if by else found.get("")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)
        self._log.close()


def until(condition: Callable[[], Any], seconds: float = 20) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except OSError:  # the server is not up yet
            pass
        assert time.monotonic() < deadline, f"the condition is still false after {seconds} s"
        time.sleep(0.1)
