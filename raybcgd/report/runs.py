"""Runs as read from their folders, finished or still running."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from raybcgd.algorithms.contract import title
from raybcgd.config import Config, load_run_config
from raybcgd.errors import ConfigError
from raybcgd.record.comparison import read_comparison
from raybcgd.record.partition import PartitionRecord, read_partition
from raybcgd.record.rounds import RoundLog, RoundRecord
from raybcgd.record.summary import accuracies, last_tenth, reaches
from raybcgd.storage import RunFolder, slug


@dataclass(frozen=True)
class Run:
    """A run with at least one round."""

    label: str
    folder: Path
    config: Config
    records: tuple[RoundRecord, ...]
    partition: PartitionRecord | None

    @cached_property
    def evaluated(self) -> list[RoundRecord]:
        """The evaluated rounds."""
        return [record for record in self.records if record.quality.accuracy is not None]

    @cached_property
    def accuracies(self) -> list[float]:
        """Accuracies of the evaluated rounds."""
        return accuracies(self.records)

    @property
    def last_tenth(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the accuracy over the last tenth of the evaluations."""
        return last_tenth(self.accuracies)

    @cached_property
    def floats(self) -> list[int]:
        """Floats uploaded by all clients up to each round."""
        return list(accumulate(record.traffic.upload_floats for record in self.records))

    @cached_property
    def bytes(self) -> list[int]:
        """Bytes uploaded by all clients up to each round."""
        return list(accumulate(record.traffic.upload_bytes for record in self.records))

    @property
    def seconds(self) -> float:
        """Time of all rounds."""
        return sum(record.timing.seconds for record in self.records)

    @cached_property
    def failures(self) -> dict[str, list[int]]:
        """Failures per round, by kind."""
        hosts = [record.hosts for record in self.records]
        return {
            "clients dropped": [len(record.dropped) for record in self.records],
            "tasks retried": [host.retried_tasks for host in hosts],
            "clients moved": [host.rehomed_clients for host in hosts],
            "hosts restarted": [host.restarted for host in hosts],
        }

    def reaches(self, target: float) -> int | None:
        """Return the first round with the target accuracy, counted from 0."""
        found = reaches(self.records, target)
        return None if found is None else found.round


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read the runs in folders of runs, comparisons or sweeps. Every run gets a unique label."""
    folders = list(dict.fromkeys(folder for path in paths for folder in _folders(path)))
    runs = [_read(RunFolder(folder)) for folder in folders]
    names = [run.label for run in runs]
    return [
        run if names.count(run.label) == 1 else replace(run, label=f"{run.label} ({run.folder.name})") for run in runs
    ]


def _folders(path: Path) -> Iterator[Path]:
    if RunFolder(path).config.exists():
        yield path
        return
    inside = sorted(child for child in path.iterdir() if RunFolder(child).config.exists()) if path.is_dir() else []
    if not inside:
        raise ConfigError(f"{path} holds no run (no config.toml); give the folder of a run or of a comparison")
    order = list(_labels(path))
    yield from sorted(inside, key=lambda child: order.index(child.name) if child.name in order else len(order))


def _labels(folder: Path) -> dict[str, str]:
    """Return the labels of a comparison's runs by their folders' names, in order."""
    comparison = read_comparison(folder)
    return {} if comparison is None else {slug(label): label for label in comparison.labels}


def _read(folder: RunFolder) -> Run:
    config = load_run_config(folder)
    records = tuple(RoundLog(folder.rounds))
    if not records:
        raise ConfigError(f"{folder.path} has no rounds yet; wait for the first one")
    label = _labels(folder.path.parent).get(folder.path.name) or title(type(config.algorithm))
    return Run(label, folder.path, config, records, read_partition(folder.partition))


def target_of(paths: Sequence[Path], runs: Sequence[Run]) -> float:
    """Return the target accuracy of the comparison in these folders, or else that of the first run."""
    for folder in (*paths, *(run.folder.parent for run in runs)):
        comparison = read_comparison(folder)
        if comparison is not None:
            return comparison.target
    return runs[0].config.metrics.target
