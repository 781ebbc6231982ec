"""Serve the metrics of all runs on a node from one port: `python -m raybcgd.record.collector`.

On Kubernetes, Prometheus cannot reach runs, which listen on free loopback ports. Therefore, every Ray pod there has a
container with this collector. Prometheus scrapes its fixed port, which is up even if no run is active.
"""

import argparse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import MetricsHandler
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from raybcgd.record.discovery import Target, discovery_folder, read_targets

_TIMEOUT_SECONDS = 3.0
_THREADS = 8


class RunsCollector(Collector):
    """Collects the metrics of the runs in a discovery folder.

    Every series gets the label `instance`, which stays the same when a run resumes. `raybcgd_run_up` is 0 for a run
    that was killed: its discovery file is still there, but its endpoint does not answer. `raybcgd_runs` is the number
    of runs that have not ended.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def describe(self) -> list[Metric]:
        return []  # the names depend on the runs

    def collect(self) -> Iterator[Metric]:
        targets = read_targets(self._folder)
        up = GaugeMetricFamily(
            "raybcgd_run_up", "1 if the run answers, 0 if it was killed.", labels=("run", "instance")
        )
        merged: dict[str, Metric] = {}
        with ThreadPoolExecutor(_THREADS) as pool:
            for target, text in zip(targets, pool.map(_fetch, targets), strict=True):
                up.add_metric((target.run, target.instance), float(text is not None))
                for family in text_string_to_metric_families(text or ""):
                    kept = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                    kept.samples += [
                        s._replace(labels={**s.labels, "instance": target.instance}) for s in family.samples
                    ]
        yield up
        yield GaugeMetricFamily("raybcgd_runs", "Number of runs that have not ended.", value=len(targets))
        yield from merged.values()


def _fetch(target: Target) -> str | None:
    """Return a run's metrics, or None if it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{target.address}/metrics", timeout=_TIMEOUT_SECONDS) as answer:
            return str(answer.read().decode())
    except OSError:
        return None


def server(host: str, port: int, folder: Path) -> ThreadingHTTPServer:
    """Return a server for the metrics of the runs in a discovery folder."""
    registry = CollectorRegistry()
    registry.register(RunsCollector(folder))
    return ThreadingHTTPServer((host, port), MetricsHandler.factory(registry))


def main() -> None:
    """Serve until the process is stopped."""
    parser = argparse.ArgumentParser(description="Serve the metrics of all runs on this node from one port.")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=9464, help="the port")
    parser.add_argument("--discovery", help="folder of the discovery files (metrics.discovery of the runs)")
    arguments = parser.parse_args()
    server(arguments.host, arguments.port, discovery_folder(arguments.discovery)).serve_forever()


if __name__ == "__main__":
    main()
