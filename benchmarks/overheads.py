"""The overheads of a run: starting the hosts, the first round, checkpoints. FedBCGD+ with LeNet-5 on random images."""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scaling import HOSTS, random_images
from raybcgd.config import make_config
from raybcgd.experiment import run
from raybcgd.record.rounds import RoundRecord

CLIENTS = 100


def measure(quick: bool) -> dict[str, float]:
    """Return the time of each step in seconds."""
    settings: dict[str, Any] = {
        "rounds": 6 if quick else 12,
        "engine": "ray",
        "data": {"partition": {"kind": "iid", "clients": CLIENTS}},
        "model": {"name": "lenet5"},
        "blocks": {"division": "equal", "count": 5},
        "algorithm": {"name": "fedbcgd+", "lr": 0.01},
        "local": {"epochs": 1, "batch_size": 10 if quick else 50},
        "cohort": {"clients_per_block": 1 if quick else 2},
        "hosts": {"count": HOSTS},
        "checkpoint": {"every": 2},
        "evaluation": {"every": 10_000},
    }
    dataset = random_images((10 if quick else 50) * CLIENTS, 3, 32, 32)
    seen: list[float] = []

    def observe(_: RoundRecord) -> None:
        seen.append(time.perf_counter())

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        records = run(
            make_config(settings), dataset=dataset, out=Path(folder) / "run", observe=observe, progress=False
        ).records
    seconds = [record.timing.seconds for record in records]
    saving = [record.timing.stage_seconds["checkpoint"] for record in records]
    return {
        # The record of a round arrives after the next round.
        f"start the coordinator and {HOSTS} hosts": seen[0] - began - seconds[0] - seconds[1],
        "first round": seconds[0],
        "later rounds, median": float(np.median(seconds[3:-1])),
        "checkpoint, median": float(np.median([value for value in saving if value > 0])),
    }
