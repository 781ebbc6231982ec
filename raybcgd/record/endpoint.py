"""Where Prometheus reads a run's metrics, and how it learns of that."""

import contextlib
import hashlib
import json
import logging
import os
import re
import socket
import tempfile
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import MetricsHandler

from raybcgd.errors import ConfigError

log = logging.getLogger(__name__)


def discovery_file(folder: str | None, run: str) -> Path:
    """Where a run is announced: one file a run, which a resumed run takes over."""
    where = Path(folder) if folder is not None else Path(tempfile.gettempdir()) / "raybcgd-discovery"
    stem = re.sub(r"[^A-Za-z0-9_.]+", "-", run).strip("-.") or "run"
    return where / f"{stem}-{hashlib.sha256(run.encode()).hexdigest()[:8]}.json"


def take_back(file: Path) -> None:
    """Remove an announcement, if it was ever made."""
    with contextlib.suppress(OSError):
        file.unlink()


class Endpoint:
    """An HTTP server in threads of its own, announced in a file of Prometheus' file-based discovery.

    A scrape formats what is there and holds no lock while it sends, so a slow reader cannot hold a round up. The file
    goes when the run ends; that of a run that was killed stays, so that Prometheus sees it down and the alert fires.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int, file: Path) -> None:
        self._file, self._fixed = file, port != 0
        self._read = threading.Event()
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(registry, self._read))
        except OSError as error:
            raise ConfigError(
                f"metrics.host = {host!r}, metrics.port = {port}: cannot listen there ({error.strerror}); use port 0 "
                "for a free one, or metrics.enabled = false"
            ) from None
        self.address = f"{reachable(host)}:{self._server.server_address[1]}"

    def __enter__(self) -> "Endpoint":
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        self._announce()
        return self

    def __exit__(self, *_: object) -> None:
        take_back(self._file)
        # The server looks up only twice a second, which a run's end need not wait for, unless the next run wants the
        # same port.
        end = threading.Thread(target=self._end, name="metrics-end", daemon=True)
        end.start()
        if self._fixed:
            end.join()

    def linger(self, seconds: float) -> None:
        """Wait until whoever has been reading has read once more, or for so long; not at all if nobody has."""
        if self._read.is_set():
            self._read.clear()
            self._read.wait(seconds)

    def _end(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _announce(self) -> None:
        targets = [{"targets": [self.address], "labels": {"job": "raybcgd"}}]
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            # Prometheus looks at *.json only, so it never reads half a file.
            temporary = self._file.with_name(f"{self._file.name}.{os.getpid()}.part")
            temporary.write_text(json.dumps(targets) + "\n")
            temporary.replace(self._file)
        except OSError as error:  # no reason to end a run
            log.warning(
                "cannot write %s (%s): Prometheus will not find the metrics at %s by itself; set metrics.discovery",
                self._file,
                error.strerror,
                self.address,
            )


def _handler(registry: CollectorRegistry, read: threading.Event) -> type[MetricsHandler]:
    """Answers with the metrics, and notes that somebody has read them."""

    class Handler(MetricsHandler.factory(registry)):  # type: ignore[misc]
        def do_GET(self) -> None:
            super().do_GET()
            read.set()

    return Handler


def reachable(host: str) -> str:
    """The address under which others reach a server that listens at `host`."""
    if host not in ("", "0.0.0.0", "::"):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: this only asks which way packets would go
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
