"""Finished runs, and runs that are still going on, as their folders show them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import numpy as np

from raybcgd.compare import title
from raybcgd.config import Config, load_config
from raybcgd.errors import ConfigError
from raybcgd.experiment import RunFolder
from raybcgd.record.partition import PartitionRecord, read_partition
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.standing import uploaded_to


@dataclass(frozen=True)
class Run:
    """A run with at least one round."""

    label: str
    folder: Path
    config: Config
    records: tuple[RoundRecord, ...]
    partition: PartitionRecord | None

    @cached_property
    def judged(self) -> list[int]:
        """The rounds that were evaluated, as places in `records`."""
        return [k for k, record in enumerate(self.records) if record.accuracy is not None]

    @cached_property
    def floats(self) -> list[int]:
        """What all clients have uploaded after each round."""
        return list(accumulate(record.upload_floats for record in self.records))

    @cached_property
    def bytes(self) -> list[int]:
        """The same in bytes."""
        return list(accumulate(record.upload_bytes for record in self.records))

    @cached_property
    def accuracies(self) -> list[float]:
        """Of the rounds that were evaluated."""
        return [record.accuracy for record in self.records if record.accuracy is not None]

    @property
    def last_tenth(self) -> tuple[float, float] | None:
        """Mean and deviation of the accuracy over the last tenth of the evaluations."""
        tail = self.accuracies[-max(1, len(self.accuracies) // 10) :]
        return (float(np.mean(tail)), float(np.std(tail))) if tail else None

    def reaches(self, target: float) -> int | None:
        """The place of the first record with the target accuracy."""
        found = uploaded_to(self.records, target)
        return None if found is None else self.records.index(found)

    @property
    def seconds(self) -> float:
        """Of all rounds."""
        return sum(record.seconds for record in self.records)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in some folders, each of one run or of a comparison or sweep, each with a label of its own."""
    folders = list(dict.fromkeys(folder for path in paths for folder in _folders(path)))
    runs = [_read(folder) for folder in folders]
    names = [run.label for run in runs]
    # The method's name where it tells runs apart, else the folder's.
    return [
        run if names.count(run.label) == 1 else _relabelled(run, f"{run.label} ({run.folder.name})") for run in runs
    ]


def _relabelled(run: Run, label: str) -> Run:
    return Run(label, run.folder, run.config, run.records, run.partition)


def _folders(path: Path) -> Iterator[Path]:
    if RunFolder(path).config.exists():
        yield path
        return
    inside = sorted(child for child in path.iterdir() if RunFolder(child).config.exists()) if path.is_dir() else []
    if not inside:
        raise ConfigError(f"{path} holds no run (no config.toml); give the folder of a run or of a comparison")
    order = _order(path)
    yield from sorted(inside, key=lambda child: order.get(child.name, len(order)))


def _order(path: Path) -> dict[str, int]:
    """The order of a comparison's runs, by their folders."""
    file = path / "comparison.json"
    lines = json.loads(file.read_text())["runs"] if file.exists() else []
    # A method's folder is called like it, but for signs that folders cannot have.
    return {line["algorithm"].replace("+", "_plus"): k for k, line in enumerate(lines)}


def _read(folder: Path) -> Run:
    here = RunFolder(folder)
    records = tuple(here.rounds)
    if not records:
        raise ConfigError(f"{folder} has no rounds yet; wait for the first one")
    config = load_config(here.config)
    return Run(title(type(config.algorithm)), folder, config, records, read_partition(folder / "partition.json"))


def target_of(paths: Sequence[Path], runs: Sequence[Run]) -> float:
    """The accuracy that a comparison in these folders counts to; else that of the runs' metrics."""
    for folder in (*paths, *(run.folder.parent for run in runs)):
        file = folder / "comparison.json"
        if file.exists():
            return float(json.loads(file.read_text())["target"])
    return runs[0].config.metrics.target
