"""Runs, finished or in progress, read from their folders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from raybcgd.algorithms.contract import title
from raybcgd.algorithms.settings import ALGORITHMS, DEFAULT_ALGORITHM
from raybcgd.config import Config, make_config, run_tables
from raybcgd.data.partition import Partitioner
from raybcgd.data.settings import PARTITIONS
from raybcgd.errors import ConfigError
from raybcgd.record.comparison import read_comparison
from raybcgd.record.partition import PartitionRecord, read_partition
from raybcgd.record.rounds import RoundLog, RoundRecord
from raybcgd.record.summary import accuracies, reaches
from raybcgd.storage import RunFolder, slug


@dataclass(frozen=True)
class Run:
    """A run with at least one round."""

    label: str
    folder: Path
    config: Config
    """Without the method, the codec and other parts that no report shows."""
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
    def rounds(self) -> range:
        """The number of rounds completed by the end of each round: 1, 2, …"""
        return range(1, len(self.records) + 1)

    @cached_property
    def floats(self) -> list[int]:
        """Floats uploaded by all clients up to each round."""
        return list(accumulate(record.traffic.upload_floats for record in self.records))

    @cached_property
    def bytes(self) -> list[int]:
        """Bytes uploaded by all clients up to each round."""
        return list(accumulate(record.traffic.upload_bytes for record in self.records))

    @cached_property
    def elapsed(self) -> list[float]:
        """Seconds up to the end of each round."""
        return list(accumulate(record.timing.seconds for record in self.records))

    @cached_property
    def failures(self) -> dict[str, list[int]]:
        """Failures per round, by kind."""
        return {
            "clients dropped": [len(record.dropped) for record in self.records],
            "tasks retried": [record.hosts.retried_tasks for record in self.records],
            "clients moved": [record.hosts.rehomed_clients for record in self.records],
            "hosts restarted": [record.hosts.restarted for record in self.records],
        }

    @property
    def failed(self) -> bool:
        """Whether there were any failures."""
        return any(any(counts) for counts in self.failures.values())

    def reaches(self, target: float) -> int | None:
        """Return the index of the first round with the target accuracy."""
        found = reaches(self.records, target)
        return None if found is None else found.round


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read the runs in folders of runs, comparisons or sweeps. Every run gets a unique label."""
    folders = dict.fromkeys(folder for path in paths for folder in run_folders(path))
    runs = [_read(RunFolder(folder)) for folder in folders]
    names = [run.label for run in runs]
    return [
        run if names.count(run.label) == 1 else replace(run, label=f"{run.label} ({run.folder.name})") for run in runs
    ]


def run_folders(path: Path) -> list[Path]:
    """Return the run folders in `path`, in the order of the comparison."""
    if RunFolder(path).config.exists():
        return [path]
    found = sorted(file.parent for file in path.glob("*/config.toml"))
    if not found:
        raise ConfigError(f"{path} contains no run (no config.toml); pass the folder of a run or of a comparison")
    # A run of a comparison that failed in its first round has nothing to show.
    found = [folder for folder in found if RoundLog(RunFolder(folder).rounds).content()] or found
    order = [path / name for name in _labels(path)]
    return [*(folder for folder in order if folder in found), *(folder for folder in found if folder not in order)]


def _labels(folder: Path) -> dict[str, str]:
    """Return the labels of a comparison's runs by folder name, in order."""
    comparison = read_comparison(folder)
    return {} if comparison is None else {slug(label): label for label in comparison.labels}


def _read(folder: RunFolder) -> Run:
    tables = run_tables(folder)
    records = tuple(RoundLog(folder.rounds))
    if not records:
        raise ConfigError(f"{folder.path} has no rounds yet; wait for the first one")
    label = _labels(folder.path.parent).get(folder.path.name) or _title(tables)
    return Run(label, folder.path, _readable_config(tables), records, read_partition(folder.partition))


class _ForeignPartition(Partitioner):
    """A partition whose class is not in raybcgd. A report shows its name and does not import it."""

    kind: str
    options: dict[str, Any]

    @property
    def label(self) -> str:
        return self.kind


def _readable_config(tables: Mapping[str, Any]) -> Config:
    """Return what a report needs of a config, without importing code that the config names."""
    kept = {name: value for name, value in tables.items() if name not in ("algorithm", "wire", "compare", "analysis")}
    data = kept.get("data")
    partition = data.get("partition") if isinstance(data, dict) else None
    if isinstance(data, dict) and isinstance(partition, dict) and PARTITIONS.is_foreign(partition.get("kind")):
        shared = {name: value for name, value in partition.items() if name in Partitioner.model_fields}
        options = {name: value for name, value in partition.items() if name not in ("kind", *shared)}
        table = {**shared, "kind": partition["kind"], "options": options}
        kept["data"] = {**data, "partition": _ForeignPartition.model_validate(table)}
    return make_config(kept)


def _title(tables: Mapping[str, Any]) -> str:
    """Return the method's name as its paper writes it, or the name of a class outside raybcgd."""
    method = tables.get("algorithm", {})
    name = method.get("name", DEFAULT_ALGORITHM) if isinstance(method, dict) else method
    return str(name).rpartition(":")[2] if ALGORITHMS.is_foreign(name) else title(ALGORITHMS.resolve(name))
