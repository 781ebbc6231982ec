"""Run the benchmarks and write RESULTS.md, results.png, results.json and docs/scale.md.

    python -m benchmarks --cifar10 FOLDER --fashion-mnist FOLDER [--quick] [--only PART ...]

Parts and workloads that are not run keep their previous results. A quick run writes to a temporary folder instead, and
prints its path.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# The clusters are local and short-lived, so they need no token. By default, Ray writes one to the home folder.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
# The same priority for all: by default, Ray lowers that of its workers.
os.environ.setdefault("RAY_worker_niceness", "0")
import ray
import torch
from rich.console import Console

from benchmarks import overheads, report, rounds, scale, scaling, simulated
from benchmarks.workloads import HOSTS, w1, w2

PARTS = ("rounds", "scaling", "aggregation", "costs", "overheads")
OURS = ("raybcgd", "torch", "ray", "numpy")
THEIRS = ("flwr", "pfl", "torch", "ray")
_LIST = "import importlib.metadata as m, sys; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"


def versions(peers: Path | None) -> str:
    """Return the versions of the packages that are measured."""
    text = f"Python {platform.python_version()}, " + ", ".join(f"{n} {importlib.metadata.version(n)}" for n in OURS)
    if peers is None:
        return text
    found = subprocess.run([peers, "-c", _LIST, *THEIRS], capture_output=True, text=True, check=True).stdout.strip()
    return f"{text}; peers: {found}"


def cpu_model() -> str:
    """Return the model of the CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", default=os.environ.get("CIFAR10"), help="folder with CIFAR-10 as Parquet files")
    parser.add_argument("--fashion-mnist", default=os.environ.get("FASHION_MNIST"), help="folder with FashionMNIST/raw")
    parser.add_argument("--peers", default=".bench-venv/bin/python", help="Python with Flower and pfl-research")
    parser.add_argument("--no-peers", action="store_true", help="leave Flower and pfl-research out")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run; default: all")
    parser.add_argument("--quick", action="store_true", help="check in a few minutes that everything works")
    parser.add_argument("--turns", type=int, default=5, help="turns of each contestant")
    return parser.parse_args()


def workloads(options: argparse.Namespace) -> list[tuple[Any, rounds.Schedule]]:
    """Return the workloads whose data folder is known, each with its schedule."""
    turns, found = 1 if options.quick else options.turns, []
    if options.cifar10:
        found.append(
            (w1(options.cifar10, options.quick), rounds.Schedule(turns, *((1, 1) if options.quick else (4, 2))))
        )
    if options.fashion_mnist:
        found.append((w2(options.fashion_mnist), rounds.Schedule(turns, *((4, 2) if options.quick else (20, 40)))))
    if not found:
        raise SystemExit("no data: pass --cifar10 or --fashion-mnist, or set CIFAR10 or FASHION_MNIST")
    return found


def main() -> None:
    """Run the parts and write the results after each."""
    options, console = arguments(), Console()
    peers = None if options.no_peers else Path(options.peers).absolute()
    if peers is not None and not peers.exists():
        raise SystemExit(f"{peers} does not exist; run `make bench`, or pass --no-peers")
    folder = Path(tempfile.mkdtemp(prefix="raybcgd-bench-")) if options.quick else report.DATA.parent
    earlier = folder / report.DATA.name
    results: dict[str, Any] = json.loads(earlier.read_text()) if earlier.exists() else {}
    results["meta"] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "cpu": cpu_model(),
        "versions": versions(peers),
        "quick": options.quick,
    }
    torch.set_num_threads(1)
    ray.init(address="local", num_cpus=HOSTS, include_dashboard=False, log_to_driver=False)
    if "rounds" in options.only:
        results.setdefault("rounds", {})
        for workload, schedule in workloads(options):
            results["rounds"][workload.name] = rounds.measure(workload, schedule, peers, console)
            report.write(results, folder)
    if "scaling" in options.only:
        for name, curve in scaling.measure(options.quick):
            results.setdefault("scaling", {})[name] = curve
            console.print(f"scaling: {name} done")
            report.write(results, folder)
    if "aggregation" in options.only:
        results.setdefault("scaling", {})["hosts"] = simulated.coordinator(options.quick)._asdict()
        results["aggregation"] = simulated.large_model(options.quick)
        report.write(results, folder)
    if "costs" in options.only:
        results["costs"] = scale.measure(options.quick)
        report.write(results, folder)
    if "overheads" in options.only:
        results["overheads"] = overheads.measure(options.quick)
    report.write(results, folder)
    console.print(f"results: {folder / report.PAGE.name}", soft_wrap=True)


if __name__ == "__main__":
    main()
