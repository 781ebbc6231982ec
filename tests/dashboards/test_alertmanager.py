"""A killed run reaches the webhook: through the shipped configs of Prometheus and Alertmanager, with both running."""

import json
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dashboards.build import ROOT
from raybcgd.record.discovery import Target, discovery_file, write_target
from tests.conftest import free_port
from tests.dashboards.server import Prometheus, until

ALERTMANAGER = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")

pytestmark = pytest.mark.skipif(
    ALERTMANAGER is None or shutil.which("prometheus") is None,
    reason="prometheus and alertmanager (Debian's packages) are not installed",
)


class Webhook:
    """A server that keeps the messages it gets."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        keep = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                keep.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/alerts"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


def test_a_killed_run_reaches_the_webhook(tmp_path: Path) -> None:
    assert ALERTMANAGER is not None
    webhook, address = Webhook(), f"127.0.0.1:{free_port()}"
    config = (ROOT / "cluster/monitoring/alertmanager.yml").read_text()
    (tmp_path / "alertmanager.yml").write_text(
        config.replace("url: WEBHOOK", f"url: {webhook.url}").replace("group_wait: 30s", "group_wait: 0s")
    )
    command = [ALERTMANAGER, f"--config.file={tmp_path}/alertmanager.yml", f"--web.listen-address={address}"]
    command += [f"--storage.path={tmp_path}/data", "--cluster.listen-address="]
    with (tmp_path / "log").open("w") as log:
        manager = subprocess.Popen(command, stdout=log, stderr=log)
    prometheus = Prometheus(tmp_path, {"127.0.0.1:9093": address}, {"for: 2m": "for: 1s"})
    file = discovery_file(str(prometheus.discovery), "x/a", "/runs/x/a")
    write_target(file, Target(f"127.0.0.1:{free_port()}", "x/a", "/runs/x/a"))
    try:
        until(lambda: webhook.messages, 60)
    finally:
        prometheus.close()
        manager.terminate()
        manager.wait(timeout=20)
    (alert,) = webhook.messages[0]["alerts"]
    assert alert["labels"]["alertname"] == "RaybcgdRunDied"
    assert alert["annotations"]["summary"] == "x/a was killed"
