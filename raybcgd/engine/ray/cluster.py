"""[Ray] Join a cluster, or start one on this machine."""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator

import ray

from raybcgd.engine.session import Announcer
from raybcgd.errors import ConfigError


@contextlib.contextmanager
def cluster(address: str | None, announce: Announcer = lambda _: None) -> Iterator[None]:
    """Join the Ray cluster at an address, or start one on this machine and stop it afterwards."""
    if ray.is_initialized():
        yield
        return
    # Without an address, Ray would join any cluster that it finds on this machine.
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    announce("starting Ray" if address == "local" else "joining the Ray cluster")
    if address not in ("auto", "local"):
        _check_reachable(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray prints a warning if this is not set
    os.environ.setdefault("RAY_preload_python_modules", "torch")  # so that hosts start faster
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        with _interrupts_delayed():
            _join(address)
        yield
    finally:
        with _interrupts_delayed():
            ray.shutdown()


def _join(address: str) -> None:
    try:
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except ConnectionError as error:
        raise _no_cluster_error(address, error) from None


def _check_reachable(address: str) -> None:
    """Raise an error if nothing listens at an address. Ray itself would retry for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except (OSError, ValueError) as error:
        raise _no_cluster_error(address, error) from None


def _no_cluster_error(address: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"hosts.address = {address!r}: no Ray cluster responds ({error}); start one, or unset hosts.address and "
        "RAY_ADDRESS to start one on this machine"
    )


@contextlib.contextmanager
def _interrupts_delayed() -> Iterator[None]:
    """Delay Ctrl-C until the block ends. An interrupt while Ray starts or stops would leave processes behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts = []
    before = signal.signal(signal.SIGINT, lambda *_: interrupts.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt


def node_resources() -> list[dict[str, float]]:
    """Return the resources of each live node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
