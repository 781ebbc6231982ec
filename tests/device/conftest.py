"""Tests with every client host on the stand-in accelerator."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch  # before the stand-in is on the path: torch would load it here and now

from raybcgd.config import Config
from raybcgd.data.dataset import Dataset
from raybcgd.experiment import RunResult
from raybcgd.record.rounds import Quality
from tests.conftest import small

HERE = Path(__file__).parent
ACCELERATOR = HERE.parent / "accelerator"
sys.path.append(str(ACCELERATOR))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests if others run in the same process: the stand-in stays loaded, and others must not see it.

    The tests on Ray take longest. They come first, so that no process waits for them at the end.
    """
    items.sort(key=lambda item: item.path.parent == HERE and item.path.stem != "test_ray")
    mine = [item for item in items if item.get_closest_marker("device")]
    if len(mine) < len(items):
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="device tests run alone: use `make test-device`"))


@pytest.fixture(scope="session", autouse=True)
def accelerator() -> None:
    """Load the stand-in into this process, and into every process that this one starts."""
    import standin

    if reason := standin.missing():
        pytest.skip(reason)
    standin.load()
    # Threads of the backward pass keep the number of threads with which they start.
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ACCELERATOR), os.environ.get("PYTHONPATH")]))


def on(device: str, **tables: Any) -> Config:
    """Return a small config with its hosts on a device, "cpu" or "gpu"."""
    return small(**{"rounds": 3, **tables, "hosts": {"device": device, **tables.get("hosts", {})}})


def outcome(result: RunResult) -> tuple[str, list[Quality]]:
    """Return what must not depend on the device: the final weights, and the losses and accuracies of all rounds."""
    return str(result.summary["sha256"]), [record.quality for record in result.records]


def with_poison(clients: int) -> Dataset:
    """Return data of which one sample, and so one client, breaks the device in the model `Poisonous`."""
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(clients * 40, 8)).astype(np.float32), rng.integers(0, 4, clients * 40)
    test = inputs[:40].copy()
    inputs[0, 0] = 1e6
    return Dataset.from_tensors(inputs, targets, test, targets[:40], classes=4)
