"""The HTTP endpoint of a run's metrics."""

import errno
import logging
import socket
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import MetricsHandler

from raybcgd.errors import ConfigError, first_line
from raybcgd.record.discovery import Target, remove_discovery_file, write_target

log = logging.getLogger(__name__)


class Endpoint:
    """An HTTP server in its own threads, announced in a file for Prometheus' file-based discovery.

    No lock is held while a response is sent, so a slow client cannot delay a round. The file is removed when the run
    ends. If the run is killed, the file stays, Prometheus sees that the target is down, and an alert fires.
    """

    def __init__(
        self, registry: CollectorRegistry, host: str, port: int, file: Path, run: str = "", instance: str = ""
    ) -> None:
        self._file, self._fixed_port = file, port != 0
        self._scraped = threading.Event()
        self._server = _listen(host, port, _handler(registry, self._scraped))
        self.address = f"{_reachable(host)}:{self._server.server_address[1]}"
        self._target = Target(self.address, run, instance or run)

    def __enter__(self) -> "Endpoint":
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        self._announce()
        return self

    def __exit__(self, *_: object) -> None:
        remove_discovery_file(self._file)
        # A shutdown takes up to half a second. Wait for it only if the next run may need the same port.
        shutdown = threading.Thread(target=self._shut_down, name="metrics-shutdown", daemon=True)
        shutdown.start()
        if self._fixed_port:
            shutdown.join()

    def linger(self, seconds: float) -> None:
        """Wait up to `seconds` for the next scrape. Return immediately if there has been no scrape yet."""
        if self._scraped.is_set():
            self._scraped.clear()
            self._scraped.wait(seconds)

    def _shut_down(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _announce(self) -> None:
        try:
            write_target(self._file, self._target)
        except OSError as error:  # a run works without metrics
            log.warning("cannot write %s for Prometheus (%s); set metrics.discovery", self._file, first_line(error))


def _listen(host: str, port: int, handler: type[MetricsHandler]) -> ThreadingHTTPServer:
    """Return a server on the port, or on a free one if the port is in use."""
    try:
        return ThreadingHTTPServer((host, port), handler)
    except OSError as error:
        if port == 0 or error.errno != errno.EADDRINUSE:
            raise ConfigError(
                f"metrics.host = {host!r}, metrics.port = {port}: cannot listen on this address ({error.strerror}); "
                "correct them, or set metrics.enabled = false"
            ) from None
    server = ThreadingHTTPServer((host, 0), handler)
    log.warning("metrics.port = %d is in use; metrics are on port %d instead", port, server.server_address[1])
    return server


def _handler(registry: CollectorRegistry, scraped: threading.Event) -> type[MetricsHandler]:
    """Return a request handler that serves the metrics and then sets `scraped`."""

    class Handler(MetricsHandler.factory(registry)):  # type: ignore[misc]
        def do_GET(self) -> None:
            super().do_GET()
            scraped.set()

    return Handler


def _reachable(host: str) -> str:
    """Return the address at which other machines reach a server that listens on `host`."""
    if host not in ("", "0.0.0.0", "::"):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; selects the outgoing interface
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
