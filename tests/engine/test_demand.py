"""Estimates of the time and the memory of a run."""

import time
from pathlib import Path

import numpy as np
import pytest

from raybcgd.config import Config, load_config
from raybcgd.data.dataset import Dataset
from raybcgd.engine.demand import START_SECONDS, Demand, demand
from raybcgd.experiment import run
from raybcgd.problem import prepare
from tests.conftest import small

QUICKSTART = Path(__file__).parents[2] / "jobs/configs/quickstart.toml"


def images(count: int, side: int) -> Dataset:
    rng = np.random.default_rng(0)
    inputs = rng.integers(256, size=(count, 3, side, side), dtype=np.uint8)
    targets = rng.integers(10, size=count)
    return Dataset.from_tensors(inputs[10:], targets[10:], inputs[:10], targets[:10], classes=10)


def test_the_quickstart_needs_one_host() -> None:
    assert demand(*prepare(load_config(QUICKSTART))).hosts == 1


def test_a_long_run_needs_many_hosts() -> None:
    """ResNet-8 on 50 000 images of CIFAR-10's size would take days on one CPU."""
    config = small(
        rounds=1000, model={"name": "resnet8", "options": {}}, local={"epochs": 5}, data={"partition": {"clients": 100}}
    )
    found = demand(*prepare(config, dataset=images(5000, 32)))
    assert found.hosts > 50


def test_hosts_grow_with_the_square_root_of_the_work() -> None:
    counts = [Demand(work * START_SECONDS, 0, 0).hosts for work in (0.0, 0.5, 1.0, 3.9, 9.0, 400.0)]
    assert counts == [1, 1, 1, 2, 3, 20]


@pytest.mark.parametrize(
    "config",
    [
        small(rounds=20, local={"epochs": 40}),
        small(rounds=20, local={"epochs": 20, "stack": 0}),
    ],
    ids=["stack", "one by one"],
)
def test_the_estimate_has_the_right_order_of_magnitude(config: Config, tmp_path: Path) -> None:
    expected = demand(*prepare(config)).seconds
    began = time.process_time()
    run(config, out=tmp_path / "run", progress=False)
    measured = time.process_time() - began
    assert measured / 6 < expected < 6 * measured, (expected, measured)


def test_memory_counts_states_samples_and_models() -> None:
    plain = demand(*prepare(small(algorithm={"name": "fedavg", "lr": 0.1})))
    stateful = demand(*prepare(small()))
    assert plain.cpu_bytes < stateful.cpu_bytes, "FedBCGD+ keeps a state per client"
    assert 512 * 2**20 < plain.cpu_bytes < 520 * 2**20
    large = small(model={"options": {"hidden": [4096, 4096]}}, local={"stack": 0}, blocks={"count": 2})
    problem, data = prepare(large)
    assert demand(problem, data).cpu_bytes > 512 * 2**20 + 8 * 4 * problem.layout.size
