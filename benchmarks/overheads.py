"""Measure the overheads of a run: starting Ray and the hosts, the first round, checkpoints.

    python benchmarks/overheads.py [--model lenet5] [--hosts 2] [--clients 100]

It runs FedBCGD+ on random images. Its clients keep states, so the checkpoints include references to them.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import ray
from bare_loop import median
from rich.console import Console
from rich.table import Table

from raybcgd import Dataset
from raybcgd.config import make_config
from raybcgd.experiment import run
from raybcgd.record.rounds import RoundRecord

ROUNDS = 12


def random_images(samples: int) -> Dataset:
    """Return random images in the shape of CIFAR-10."""
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, samples)
    return Dataset.from_tensors(inputs, targets, inputs[:500], targets[:500], classes=10)


def main() -> None:
    """Run, and print a table of times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--clients", type=int, default=100)
    arguments = parser.parse_args()
    config = make_config(
        {
            "rounds": ROUNDS,
            "engine": "ray",
            "data": {"partition": {"kind": "iid", "clients": arguments.clients}},
            "model": {"name": arguments.model},
            "blocks": {"division": "equal", "count": 5},
            "algorithm": {"name": "fedbcgd+", "lr": 0.01},
            "local": {"epochs": 1, "batch_size": 50},
            "cohort": {"clients_per_block": 2},
            "hosts": {"count": arguments.hosts},
            "checkpoint": {"every": 2},
            "evaluation": {"every": 10_000},
        }
    )
    dataset = random_images(50 * arguments.clients)
    began = time.perf_counter()
    ray.init(num_cpus=arguments.hosts, include_dashboard=False, log_to_driver=False)
    ready = time.perf_counter()
    seen: list[float] = []

    def observe(record: RoundRecord) -> None:
        seen.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        records = run(config, dataset=dataset, out=Path(folder) / "run", observe=observe).records
        size = sum(path.stat().st_size for path in (Path(folder) / "run" / "checkpoints").rglob("*") if path.is_file())
    # The record of a round arrives after the next round.
    started = seen[0] - ready - records[0].timing.seconds - records[1].timing.seconds
    later = [record.timing.seconds for record in records[3:-1]]
    saving = [
        record.timing.stage_seconds["checkpoint"] for record in records if record.timing.stage_seconds["checkpoint"] > 0
    ]
    table = Table("step", "seconds")
    table.add_row("start Ray", f"{ready - began:.2f}")
    table.add_row(f"start the coordinator and {arguments.hosts} hosts", f"{started:.2f}")
    table.add_row("first round", f"{records[0].timing.seconds:.3f}")
    table.add_row("later rounds (median)", f"{median(later):.3f}")
    table.add_row(f"checkpoint (median; {size / 1e6:.1f} MB kept)", f"{median(saving):.4f}")
    Console().print(table)


if __name__ == "__main__":
    main()
