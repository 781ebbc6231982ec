"""Small experiments that the tests share."""

import gc
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from raybcgd.config import Config, make_config

# COLUMNS is set in the workers of pytest-xdist. The command line's console, created on import, would keep that width,
# and a test could not ask for another one.
os.environ.pop("COLUMNS", None)
# By default, Ray's workers have a low priority, and starve on a busy machine.
os.environ.update({"RAY_worker_niceness": "0"})


def pytest_collection() -> None:
    """Pause garbage collection while the tests and torch are imported."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt what was imported from garbage collection, which would otherwise go through it in every test."""
    gc.freeze()
    gc.enable()


ONE_BY_ONE = {"stack": 0}
"""For runs in new processes: without a stack, they do not import torch's compiler, which takes 0.7 s."""


def small(**tables: Any) -> Config:
    """Return a config of FedBCGD+ on the digits with a small network. A round takes a few hundredths of a second."""
    base: dict[str, Any] = {
        "rounds": 4,
        "engine": "local",
        "data": {"partition": {"kind": "dirichlet", "rho": 0.3, "clients": 20}},
        "model": {"name": "mlp", "options": {"hidden": [16, 16, 16]}},
        "blocks": {"count": 3},
        "algorithm": {"name": "fedbcgd+", "lr": 0.05, "momentum": 0.5},
        "local": {"epochs": 1, "batch_size": 20},
        "cohort": {"clients_per_block": 2},
        "checkpoint": {"every": 2},
    }
    for key, value in tables.items():
        merge = isinstance(value, dict) and key in base and not (key == "algorithm" and "name" in value)
        base[key] = {**base[key], **value} if merge else value
    return make_config(base)


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stacks of clients replay recorded operations from the fifth step on, as long runs do later."""
    monkeypatch.setattr("raybcgd.client.gradients._RECORD_AFTER", 5)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The path of a run folder that does not exist yet."""
    return tmp_path / "run"
