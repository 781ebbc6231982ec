"""The number and size of copies between host and device: LeNet-5, ten clients with two steps of 20 images each."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standin import Copies, counting

from raybcgd.client.training import LocalWork
from raybcgd.data.dataset import Dataset
from raybcgd.experiment import run
from raybcgd.record.rounds import RoundRecord
from tests.device.conftest import on

pytestmark = pytest.mark.device

MB = 10**6
NEVER = 1000
MODEL = 797_962 * 4
"""Bytes of LeNet-5."""
IMAGE = 3 * 32 * 32
TEST_IMAGES = 1200
"""More than two pieces of an evaluation."""
SMALL = 100_000
"""Bytes for indices, labels and other small tensors."""

Second = Callable[..., Copies]


@pytest.fixture(scope="module")
def second_round(tmp_path_factory: pytest.TempPathFactory) -> Second:
    """A function that returns the copies of a method's second round, in which every client takes part again."""
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(0, 256, (TEST_IMAGES, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, TEST_IMAGES)
    images = Dataset.from_tensors(inputs[:400], targets[:400], inputs, targets, classes=10)

    @cache
    def measure(name: str, evaluate_every: int = NEVER, **hosts: Any) -> Copies:
        config = on(
            "gpu",
            data={"partition": {"kind": "iid", "clients": 10}},
            model={"name": "lenet5", "options": {}},
            blocks={"division": "lenet5-paper"},
            cohort={"clients_per_block": None, "clients_per_round": 10},
            algorithm={"name": name, "lr": 0.05},
            evaluation={"every": evaluate_every},
            checkpoint={"every": NEVER},
            hosts={"device_state_memory_mb": 0, **hosts},
        )
        rounds: list[Copies] = []

        def observe(record: RoundRecord) -> None:
            for copies in rounds[-1:]:
                copies.stop()
            rounds.append(Copies())

        run(config, dataset=images, out=tmp_path_factory.mktemp("traffic") / "run", observe=observe)
        return rounds[0]

    return measure


def test_fedavg_uploads_the_model_and_the_batches_once(second_round: Second) -> None:
    copies = second_round("fedavg")
    assert copies.to_device.copies <= 25, copies.to_device
    assert copies.to_device.bytes <= 5 * MB, copies.to_device


def test_fedavg_downloads_no_model(second_round: Second) -> None:
    """In one process, the server's vectors are on the device too."""
    copies = second_round("fedavg")
    assert copies.to_host.bytes <= SMALL, copies.to_host


@pytest.mark.parametrize("name", ["scaffold", "fedbcgd+"])
def test_a_state_is_uploaded_once(second_round: Second, name: str) -> None:
    copies = second_round(name)
    assert copies.to_device.bytes <= 45 * MB, copies.to_device


@pytest.mark.parametrize(("name", "limit"), [("scaffold", 36 * MB), ("fedbcgd+", 9 * MB)])
def test_a_state_is_downloaded_once(second_round: Second, name: str, limit: int) -> None:
    """Only the changes of ten states are copied back: all coordinates, or a block and the shared block."""
    copies = second_round(name)
    assert copies.to_host.bytes <= limit, copies.to_host


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedbcgd+"])
def test_a_client_is_read_with_few_copies(second_round: Second, name: str) -> None:
    """A client's losses, norms and finite checks come in one copy, and the changes of its state in another."""
    copies = second_round(name)
    assert copies.to_host.copies <= 2 * 10 + 20, copies.to_host


@pytest.mark.parametrize("name", ["scaffold", "fedbcgd+"])
def test_resident_states_are_not_uploaded(second_round: Second, name: str) -> None:
    """Ten states of LeNet-5 fit on any device, and so do the samples. Only indices remain."""
    copies = second_round(name, device_state_memory_mb=64)
    assert copies.to_device.bytes <= SMALL, copies.to_device


@pytest.mark.parametrize(("aggregation", "uploads"), [("hosts", 0), ("coordinator", 1)])
def test_an_evaluation_uploads_the_model_and_the_test_data_once(
    second_round: Second, aggregation: str, uploads: int
) -> None:
    """With `coordinator`, the server's vectors are on the CPU, as on Ray."""
    without, evaluated = (second_round("fedavg", every, aggregation=aggregation).to_device for every in (NEVER, 1))
    added = evaluated.bytes - without.bytes
    assert uploads * MODEL <= added <= uploads * MODEL + TEST_IMAGES * IMAGE + SMALL, evaluated


@pytest.mark.parametrize(
    ("row", "name", "budget"),
    [
        ("FedAvg", "fedavg", 0),
        ("SCAFFOLD, in host memory", "scaffold", 0),
        ("FedBCGD+, in host memory", "fedbcgd+", 0),
        ("FedBCGD+, on the device", "fedbcgd+", 64),
    ],
)
def test_the_documented_copies_are_the_counted_ones(second_round: Second, row: str, name: str, budget: int) -> None:
    page = (Path(__file__).parents[2] / "docs/gpus.md").read_text()
    (line,) = re.findall(rf"^\| {re.escape(row)} \|.*", page, re.MULTILINE)
    copies = second_round(name, device_state_memory_mb=budget)
    for cell, counted in zip(line.strip("| ").split(" | ")[1:], (copies.to_device, copies.to_host), strict=True):
        shown = f"{counted.copies} copies, {counted.bytes / 1e3:.0f} kB, {counted.bytes / 1e6:.1f} MB"
        numbers = re.findall(r"[\d.]+ (?:copies|kB|MB)", cell)
        assert numbers
        assert set(numbers) <= set(shown.split(", ")), f"{cell}: counted {shown}"


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("stack", [0, 4], ids=["one by one", "stacked"])
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "feddc", "fedpvr", "fedbcgd", "fedbcgd+"])
def test_no_copy_inside_local_training(out: Path, monkeypatch: pytest.MonkeyPatch, name: str, stack: int) -> None:
    sgd, found = LocalWork.sgd, []

    def counted(self: LocalWork, *arguments: Any, **options: Any) -> Any:
        with counting() as copies:
            y = sgd(self, *arguments, **options)
        found.append(copies)
        return y

    monkeypatch.setattr(LocalWork, "sgd", counted)
    run(on("gpu", algorithm={"name": name, "lr": 0.05}, local={"stack": stack}), out=out)
    assert found
    for copies in found:
        assert copies.to_device.copies == 0, copies.to_device
        assert copies.to_host.copies == 0, copies.to_host
