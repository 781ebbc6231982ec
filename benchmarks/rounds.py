"""Round times of all contestants on a workload, interleaved: they take turns of a few rounds, in rotating order."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.bundle import Bundle
from benchmarks.contestant import Contestant, Process
from benchmarks.ours import Ours
from benchmarks.workloads import Workload, bundle
from raybcgd.data.dataset import Dataset
from raybcgd.problem import prepare

PEERS = {
    "Flower": "benchmarks.peers.flower",
    "pfl-research": "benchmarks.peers.pfl_research",
}
OURS = {
    "raybcgd FedAvg": ("fedavg", 1),
    "raybcgd SCAFFOLD": ("scaffold", 1),
    "raybcgd FedBCGD (E = 5)": ("fedbcgd", 5),
    "raybcgd FedBCGD+ (E = 5)": ("fedbcgd+", 5),
}


class Schedule(NamedTuple):
    """How long a contestant runs."""

    turns: int
    rounds: int
    """Measured rounds per turn."""
    warm_up: int
    """Rounds at the start of a turn that are not counted: memory is allocated, caches are cold."""


def measure(workload: Workload, schedule: Schedule, peers: Path | None, console: Console) -> dict[str, Any]:
    """Return the round times of every contestant by turn. `peers` is the Python of their environment."""
    problem, data = prepare(workload.config())
    packed = bundle(workload, problem, data)
    initial = packed.loss(packed.module)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        packed.save(Path(folder) / "bundle.pt")
        entries = list(_contestants(workload, data.dataset, packed, Path(folder), peers, stack))
        turns: dict[str, list[list[float]]] = {entry.name: [] for entry in entries}
        losses: dict[str, float] = {}
        for number in range(schedule.turns):
            first = number % len(entries)
            for entry in entries[first:] + entries[:first]:
                turn = entry.turn(schedule.warm_up + schedule.rounds)
                losses.setdefault(entry.name, turn.loss)
                turns[entry.name].append(turn.seconds[schedule.warm_up :])
                console.print(f"{workload.name}, turn {number + 1}: {entry.name}: {min(turns[entry.name][-1]):.4f} s")
    if idle := [name for name, loss in losses.items() if not loss < initial]:
        raise SystemExit(f"{workload.name}: these contestants did not lower the training loss: {', '.join(idle)}")
    return {
        "title": workload.title,
        "initial_loss": initial,
        "schedule": schedule._asdict(),
        "contestants": {name: {"seconds": turns[name], "loss": losses[name]} for name in turns},
    }


def _contestants(
    workload: Workload, dataset: Dataset, packed: Bundle, folder: Path, peers: Path | None, stack: ExitStack
) -> Iterator[Contestant]:
    """Start the contestants. They stop with the stack."""
    commands = {
        f"bare {variant}": [sys.executable, "-m", "benchmarks.bare", str(folder / "bundle.pt"), variant]
        for variant in workload.bare
    }
    if peers is not None:
        commands |= {name: [str(peers), "-m", module, str(folder / "bundle.pt")] for name, module in PEERS.items()}
    for name, command in commands.items():
        yield stack.enter_context(closing(Process(name, command, folder / f"{name}.log")))
    for name, (algorithm, epochs) in OURS.items():
        yield Ours(name, workload, dataset, packed, algorithm, epochs)
