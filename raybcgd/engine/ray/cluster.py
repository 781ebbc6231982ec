"""[Ray] Join a cluster, or start one on this machine."""

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.exceptions import AuthenticationError, RayError
from ray.job_config import JobConfig

from raybcgd.engine.ray.own import OwnRay
from raybcgd.engine.session import Announcer, ignore
from raybcgd.engine.settings import host_and_port
from raybcgd.errors import ConfigError
from raybcgd.interrupts import delayed
from raybcgd.lazy import IMPORT_PATH, searched

_ROOT = str(Path(__file__).parents[3])
"""The folder that contains the package. Workers need it even if the package is not installed."""


@contextlib.contextmanager
def cluster(address: str | None, announce: Announcer = ignore) -> Iterator[None]:
    """Join the Ray cluster at an address, or start one on this machine and stop it afterwards."""
    if ray.is_initialized():
        yield
        return
    # Without an address, Ray would join any cluster that it finds on this machine.
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    announce("starting Ray" if address == "local" else "joining the Ray cluster")
    if address not in ("auto", "local"):
        _check_reachable(address)
        _check_token(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray prints a warning if this is not set
    # Ray starts workers in advance. They import these modules while the driver prepares the run.
    os.environ.setdefault("RAY_preload_python_modules", "raybcgd.engine.ray.coordinator")
    os.environ[IMPORT_PATH] = os.pathsep.join([*_script_folders(), *searched])
    logging.getLogger("ray").setLevel(logging.ERROR)
    if address == "local":
        with OwnRay(partial(_join, address)).running():
            yield
        return
    try:
        with delayed():
            _join(address)
        yield
    finally:
        with delayed():
            ray.shutdown()


def _join(address: str) -> None:
    try:
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            job_config=_OwnPath() if address == "local" and _ROOT not in _script_folders() else JobConfig(),
        )
    except ConnectionError as error:
        raise _no_cluster_error(address, error) from None


class _OwnPath(JobConfig):
    """Keeps Ray from putting the current folder first on the workers' path, where its files could shadow libraries."""

    def _runtime_env_has_working_dir(self) -> bool:
        return True


def _script_folders() -> list[str]:
    """Return the folders that Ray would put first on the workers' path. The package puts them last."""
    script = os.path.dirname(os.path.realpath(sys.argv[0]))
    return [*([script] if script in sys.path else []), os.getcwd()]


def _check_reachable(address: str) -> None:
    """Raise an error if nothing listens at an address. Ray itself would retry for minutes."""
    try:
        host, port = host_and_port(address)
    except ValueError as error:  # hosts.address has been checked
        raise ConfigError(f"RAY_ADDRESS = {address!r}: {error}") from None
    try:
        socket.create_connection((host, port), timeout=5.0).close()
    except (OSError, UnicodeError) as error:  # the latter if the name cannot be encoded
        raise _no_cluster_error(address, error) from None


def _check_token(address: str) -> None:
    """Raise an error if the cluster refuses our token. Ray itself would retry for half a minute."""
    if "://" in address:
        return
    with _without_stderr(), contextlib.suppress(RayError, ConnectionError):
        try:
            GcsClient(address=address)
        except AuthenticationError:
            raise ConfigError(
                f"the Ray cluster at {address!r} refuses the token; set RAY_AUTH_MODE=token, and "
                "RAY_AUTH_TOKEN to the token of the cluster"
            ) from None


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard what Ray's C++ code writes to standard error."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _no_cluster_error(address: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"no Ray cluster responds at {address!r} ({error}); start one, or unset hosts.address and "
        "RAY_ADDRESS to start one on this machine"
    )


def node_resources() -> list[dict[str, float]]:
    """Return the resources of each live node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
