"""The metrics endpoint and its discovery file."""

import json
import socket
import stat
import threading
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from raybcgd.errors import ConfigError
from raybcgd.record.discovery import discovery_file
from raybcgd.record.endpoint import Endpoint
from raybcgd.record.settings import MetricsConfig
from tests.record.scraping import scrape

REGISTRY = CollectorRegistry()
Gauge("answer", "A metric.", registry=REGISTRY).set(42)


def test_the_endpoint_listens_on_loopback_and_is_announced_while_it_is_up(tmp_path: Path) -> None:
    file = discovery_file(str(tmp_path), "my runs/a")
    with Endpoint(REGISTRY, MetricsConfig().host, 0, file) as endpoint:
        assert endpoint.address.startswith("127.0.0.1:")
        assert json.loads(file.read_text())[0]["targets"] == [endpoint.address]
        assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert not file.exists()


def test_discovery_files_are_world_readable(tmp_path: Path) -> None:
    """Prometheus runs as another user."""
    with Endpoint(REGISTRY, "127.0.0.1", 0, tmp_path / "x.json"):
        assert (tmp_path / "x.json").stat().st_mode & stat.S_IROTH


def test_the_endpoint_waits_for_a_last_scrape_only_if_it_was_scraped_before(tmp_path: Path) -> None:
    with Endpoint(REGISTRY, "127.0.0.1", 0, tmp_path / "x.json") as endpoint:
        began = time.perf_counter()
        endpoint.linger(30)
        assert time.perf_counter() - began < 1
        scrape(tmp_path)
        endpoint.linger(0.2)  # nobody scrapes again
        assert 0.2 <= time.perf_counter() - began < 5
        scrape(tmp_path)
        threading.Timer(0.2, scrape, [tmp_path]).start()
        began = time.perf_counter()
        endpoint.linger(30)
        assert 0.1 < time.perf_counter() - began < 10


def test_a_port_in_use_is_a_warning_and_a_free_port_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise, the second run on a node would end with an error."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Endpoint(REGISTRY, "127.0.0.1", port, tmp_path / "x.json") as endpoint:
            assert endpoint.address != f"127.0.0.1:{port}"
            assert "answer 42.0" in scrape(tmp_path)
    assert f"metrics.port = {port} is in use; metrics are on port" in caplog.text


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.host = '192\.0\.2\.77'.*correct them"):
        Endpoint(REGISTRY, "192.0.2.77", 0, tmp_path / "x.json")


def test_consecutive_runs_can_use_the_same_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for _ in range(3):
        with Endpoint(REGISTRY, "127.0.0.1", port, tmp_path / "x.json"):
            assert "answer 42.0" in scrape(tmp_path)
