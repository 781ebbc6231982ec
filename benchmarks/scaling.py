"""Scaling curves of raybcgd: the round time against the number of clients, the model size and the number of blocks.

Each curve is a function in `CURVES` that returns its points. Data are random, with little work per client, so that the
curves show what raybcgd itself costs.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from raybcgd import Dataset
from raybcgd.config import make_config
from raybcgd.experiment import run

HOSTS = 2
WARM_UP = 2
SAMPLES = 2
"""Samples per client: one local step."""


class Curve(NamedTuple):
    """A measured curve."""

    title: str
    x: str
    """What the x axis shows."""
    points: list[dict[str, Any]]
    """Each with x and the times of its rounds in seconds."""
    heading: str = "Round time"


class Padded(nn.Module):
    """A linear model with 10 outputs, plus padding parameters whose gradient is dense and cheap."""

    def __init__(self, features: int, parameters: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 10)
        self.padding = nn.Parameter(torch.zeros(parameters - 10 * features - 10))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        return self.linear(inputs.flatten(1)) + 1e-6 * self.padding.sum()


def random_images(samples: int, *shape: int) -> Dataset:
    """Return random byte images with labels from 0 to 9."""
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, (samples, *shape), dtype=np.uint8)
    targets = np.arange(samples) % 10
    return Dataset.from_tensors(inputs, targets, inputs[:10], targets[:10], classes=10)


def settings(algorithm: str, clients: int, cohort: int, blocks: int) -> dict[str, Any]:
    """Return the settings of a run with one local step per client."""
    return {
        "engine": "ray",
        "data": {"partition": {"kind": "iid", "clients": clients}},
        "model": {"name": "logistic"},
        "blocks": {"division": "equal", "count": blocks, "shared": "none"},
        "algorithm": {"name": algorithm, "lr": 0.01},
        "local": {"epochs": 1, "batch_size": SAMPLES},
        "cohort": {"clients_per_round": cohort},
        "hosts": {"count": HOSTS},
        "evaluation": {"every": 10_000},
        "checkpoint": {"every": 0},
    }


def round_seconds(
    values: dict[str, Any], dataset: Dataset, rounds: int, module: nn.Module | None = None
) -> list[float]:
    """Run, and return the round times without the warm-up and the last round, which waits for its evaluation."""
    config = make_config({**values, "rounds": WARM_UP + rounds + 1})
    with tempfile.TemporaryDirectory() as folder:
        records = run(config, module=module, dataset=dataset, out=Path(folder) / "run", progress=False).records
    ends = np.array([record.timing.finished_at for record in records], dtype=float)
    return np.diff(ends)[WARM_UP - 1 : -1].tolist()


def clients(quick: bool) -> Curve:
    """Measure FedBCGD+, whose clients keep states, with at most 1 000 clients per round."""
    points = []
    for exponent in range(2, 4 if quick else 6):
        count = 10**exponent
        cohort = min(count, 1000)
        dataset = random_images(SAMPLES * count, 1, 28, 28)
        seconds = round_seconds(settings("fedbcgd+", count, cohort, 5), dataset, 3 if quick else 12)
        points.append({"x": count, "seconds": seconds, "cohort": cohort})
    return Curve("FedBCGD+, logistic (7 850), at most 1 000 clients per round", "clients", points)


def model_size(quick: bool) -> Curve:
    """Measure FedBCGD on padded models, with 4 blocks and 4 clients per round."""
    points = []
    dataset = random_images(8 * SAMPLES, 1, 8, 8)
    for exponent in range(4, 7 if quick else 9):
        module = Padded(64, 10**exponent)
        # One client at a time, as for any large model: small ones would otherwise train as stacks.
        values = {**settings("fedbcgd", 8, 4, 4), "local": {"epochs": 1, "batch_size": SAMPLES, "stack": 0}}
        seconds = round_seconds(values, dataset, 3 if quick or exponent == 8 else 8, module)
        points.append({"x": 10**exponent, "seconds": seconds})
    return Curve("FedBCGD, 4 blocks, 4 clients per round, one at a time", "parameters", points)


def blocks(quick: bool) -> Curve:
    """Measure FedBCGD with the same 100 clients per round, divided among more and more blocks."""
    dataset = random_images(SAMPLES * 1000, 1, 28, 28)
    points = [
        {"x": count, "seconds": round_seconds(settings("fedbcgd", 1000, 100, count), dataset, 3 if quick else 12)}
        for count in ((1, 50) if quick else (1, 2, 5, 10, 20, 50))
    ]
    return Curve("FedBCGD, logistic (7 850), 100 of 1 000 clients per round", "blocks", points)


CURVES: dict[str, Callable[[bool], Curve]] = {"clients": clients, "model size": model_size, "blocks": blocks}
"""The curves by name. The argument is whether to measure only a few small points."""


def measure(quick: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each curve with its name."""
    for name, curve in CURVES.items():
        yield name, curve(quick)._asdict()
