"""Compare the round time with that of a bare PyTorch loop on the same work.

    python benchmarks/round_speed.py --cifar10 FOLDER --fashion-mnist FOLDER

The two alternate every few rounds, because the speed of a machine varies. The table shows medians.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
from bare_loop import BareLoop, median
from rich.console import Console
from rich.table import Table

from raybcgd.config import make_config
from raybcgd.experiment import run
from raybcgd.problem import prepare

HOSTS = 2
WARM_UP = 3
"""Warm-up rounds per turn, not counted: hosts import modules and allocate memory, and client times are unknown."""


def workload(name: str, source: str, root: str, model: str, clients: int, images: int, cohort: int, batch: int) -> Any:
    """Return a name and the settings of a config."""
    return name, {
        "engine": "ray",
        "data": {
            "source": source,
            "root": root,
            "partition": {"kind": "iid", "clients": clients, "samples_per_client": images},
        },
        "model": {"name": model},
        "blocks": {"count": 1, "shared": "none", "division": "equal"},
        "algorithm": {"name": "fedavg", "lr": 0.05},
        "local": {"epochs": 1, "batch_size": batch},
        "cohort": {"clients_per_round": cohort},
        "hosts": {"count": HOSTS},
        "evaluation": {"every": 10_000},
        "checkpoint": {"every": 0},
    }


def compare(settings: dict[str, Any], turns: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the round times of the bare loop and of raybcgd."""
    config = make_config({**settings, "rounds": WARM_UP + rounds})
    problem, data = prepare(config)
    bare = BareLoop(problem, data, HOSTS)
    theirs: list[float] = []
    ours: list[float] = []
    for _ in range(turns):
        seconds = [bare.round(index) for index in range(WARM_UP + rounds)]
        theirs += seconds[WARM_UP:]
        with tempfile.TemporaryDirectory() as folder:
            result = run(config, dataset=data.dataset, out=Path(folder) / "run")
        # The last round is left out: no later round overlaps its evaluation.
        ours += [record.timing.seconds for record in result.records[WARM_UP:-1]]
    bare.close()
    return theirs, ours


def main() -> None:
    """Run the workloads whose data folder was passed, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", help="folder with CIFAR-10 as Parquet files")
    parser.add_argument("--fashion-mnist", help="folder with FashionMNIST/raw")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    workloads = []
    if arguments.cifar10:
        workloads.append(
            workload("LeNet-5, CIFAR-10, 20 of 100", "parquet", arguments.cifar10, "lenet5", 100, 100, 20, 50)
        )
    if arguments.fashion_mnist:
        root = arguments.fashion_mnist
        workloads.append(
            workload("logistic, Fashion-MNIST, 100 of 1000", "fashion_mnist", root, "logistic", 1000, 60, 100, 20)
        )
    torch.set_num_threads(1)
    table = Table("workload", "bare loop, s", "raybcgd, s", "ratio")
    ray.init(num_cpus=HOSTS, include_dashboard=False, log_to_driver=False)
    for name, settings in workloads:
        theirs, ours = compare(settings, arguments.turns, arguments.rounds)
        table.add_row(name, f"{median(theirs):.3f}", f"{median(ours):.3f}", f"{median(ours) / median(theirs):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
