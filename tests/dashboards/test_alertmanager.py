"""A killed run reaches the webhook: with the shipped configs and the command of compose.yaml, all running."""

import json
import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.build import ROOT
from raybcgd.record.discovery import Target, discovery_file, write_target
from tests.conftest import free_port
from tests.dashboards.server import Prometheus, until

ALERTMANAGER = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")

pytestmark = pytest.mark.skipif(
    ALERTMANAGER is None or shutil.which("prometheus") is None,
    reason="prometheus and alertmanager (Debian's packages) are not installed",
)


PATH = "/alerts?key=a&signature=b%7Cc|d"
"""With the characters that `sed` treats specially."""


class Webhook:
    """A server that keeps the messages it gets."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.paths: list[str] = []
        keep, paths = self.messages, self.paths

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                paths.append(self.path)
                keep.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{PATH}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


def alertmanager(folder: Path, address: str, webhook: str) -> subprocess.Popen[bytes]:
    """Run the command of compose.yaml, with other paths and without delay."""
    assert ALERTMANAGER is not None
    config = (ROOT / "cluster/monitoring/alertmanager.yml").read_text()
    assert "group_wait: 30s" in config
    (folder / "shipped.yml").write_text(config.replace("group_wait: 30s", "group_wait: 0s"))
    service = yaml.safe_load((ROOT / "cluster/monitoring/compose.yaml").read_text())["services"]["alertmanager"]
    (command,) = service["command"]
    for shipped, here in {
        "$$": "$",
        "/etc/alertmanager/alertmanager.yml": f"{folder}/shipped.yml",
        "exec alertmanager ": f"exec {ALERTMANAGER} ",
        "/alertmanager/config.yml": f"{folder}/config.yml",
        "--storage.path=/alertmanager": f"--storage.path={folder}/alerts",
        "127.0.0.1:9093": address,
    }.items():
        assert shipped in command
        command = command.replace(shipped, here)
    with (folder / "log").open("w") as log:
        env = {**os.environ, "ALERT_WEBHOOK": webhook}
        return subprocess.Popen([*service["entrypoint"], command], env=env, stdout=log, stderr=log)


def test_a_killed_run_reaches_the_webhook(tmp_path: Path) -> None:
    webhook, address = Webhook(), f"127.0.0.1:{free_port()}"
    manager = alertmanager(tmp_path, address, webhook.url)
    prometheus = Prometheus(tmp_path, {"127.0.0.1:9093": address}, {"for: 2m": "for: 1s"})
    file = discovery_file(str(prometheus.discovery), "x/a", "/runs/x/a")
    write_target(file, Target(f"127.0.0.1:{free_port()}", "x/a", "/runs/x/a"))
    try:
        until(lambda: webhook.messages, 60)
    finally:
        prometheus.close()
        manager.terminate()
        manager.wait(timeout=20)
    assert webhook.paths[0] == PATH
    (alert,) = webhook.messages[0]["alerts"]
    assert alert["labels"]["alertname"] == "RaybcgdRunDied"
    assert alert["annotations"]["summary"] == "x/a was killed"
