"""Serve the report of runs in progress. The page is drawn again when a round has finished, and reloads itself."""

import logging
import tempfile
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from raybcgd.errors import ConfigError
from raybcgd.record.lock import in_use
from raybcgd.report.failures import failed_runs
from raybcgd.report.page import write_report
from raybcgd.report.planned import finished_lines
from raybcgd.report.runs import read_runs, run_folders
from raybcgd.storage import RunFolder

log = logging.getLogger(__name__)

_WAITING = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,"><title>raybcgd</title></head>
<body><p>Waiting for the first round.</p></body></html>
"""


class LivePage:
    """The report of runs that may still be in progress."""

    def __init__(self, paths: Sequence[Path], target: float | None = None) -> None:
        self._paths, self._target = paths, target
        self._one_drawer = threading.Lock()
        self._drawn: dict[Path, tuple[int, bool]] = {}
        self._html = _WAITING.encode()

    def html(self) -> bytes:
        """Return the page, drawn again if a round has finished, or a run has ended, since the last call."""
        with self._one_drawer:
            runs = self._runs()
            if runs != self._drawn:
                try:
                    self._html, self._drawn = self._draw(list(runs)), runs
                except ConfigError as error:  # for example, a file that is being replaced
                    log.warning("cannot draw the report: %s", error)
                except Exception:  # a bug, which must not stop the server
                    log.exception("cannot draw the report")
            return self._html

    def _runs(self) -> dict[Path, tuple[int, bool]]:
        """Return the size of each run's log, and whether a driver runs it. Runs without a round are left out."""
        found: dict[Path, tuple[int, bool]] = {}
        for path in self._paths:
            try:
                folders = run_folders(path)
            except ConfigError:  # the run has not created its folder yet
                continue
            for folder in folders:
                file = RunFolder(folder).rounds
                if file.exists() and (size := file.stat().st_size):
                    found[folder] = (size, in_use(folder))
        return found

    def _draw(self, folders: list[Path]) -> bytes:
        runs = read_runs(folders)
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            target = self._target or runs[0].config.metrics.target
            failed = failed_runs(self._paths, runs)
            lines = finished_lines(self._paths, failed)
            write_report(runs, target, page, failed=failed, asked=self._target is not None, lines=lines)
            return page.read_bytes()


def live_server(page: LivePage, port: int, seconds: int) -> ThreadingHTTPServer:
    """Return a server for the page, on loopback only. Browsers reload the page after `seconds`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/":
                self.send_error(404)
                return
            body = page.html()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Refresh", str(seconds))  # needs no script, which the page's policy forbids
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass  # no line per request

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ConfigError(f"--port {port} cannot be used ({error.strerror}); use another one, or 0") from None
