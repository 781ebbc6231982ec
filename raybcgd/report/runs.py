"""Runs, finished or in progress, read from their folders."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from raybcgd.algorithms.contract import title
from raybcgd.algorithms.settings import ALGORITHMS, DEFAULT_ALGORITHM
from raybcgd.config import Config, make_config, run_tables
from raybcgd.data.partition import Partitioner
from raybcgd.data.settings import PARTITIONS
from raybcgd.errors import ConfigError
from raybcgd.record.comparison import planned_methods
from raybcgd.record.lock import in_use
from raybcgd.record.partition import PartitionRecord, read_partition
from raybcgd.record.rounds import RoundLog, RoundRecord
from raybcgd.record.summary import accuracies, reaches
from raybcgd.report.style import shortened
from raybcgd.report.sweeps import point_label
from raybcgd.server.budget import ended_by
from raybcgd.storage import RunFolder, slug

log = logging.getLogger(__name__)

State = Literal["finished", "running", "stopped"]
"""A stopped run has not finished, and no process continues it."""
STOPPED_EARLY = "stopped before its first round was complete"
_MOST_KEYS = 4
"""Runs that differ in more settings are named after their folders."""


@dataclass(frozen=True)
class Run:
    """A run with at least one round."""

    label: str
    method: str
    """The label without the seed: runs of one method share it."""
    settings: dict[str, Any]
    """All settings by key, such as "algorithm.lr"."""
    folder: Path
    config: Config
    """Without `[algorithm]`, `[wire]`, `[compare]` and `[analysis]`, which only `settings` has."""
    records: tuple[RoundRecord, ...]
    partition: PartitionRecord | None
    state: State = "finished"
    family: str | None = None
    """The method's name, if the label has only the settings that differ between this run and all others."""
    comparison: Path | None = None
    """The folder of the comparison that the run belongs to."""
    end: str = ""
    """The end of the label that names this folder, if other runs of the report have the same method."""

    @property
    def source(self) -> Path:
        """The folder of the comparison, or of the run if it belongs to none."""
        return self.comparison or self.folder

    @cached_property
    def evaluated(self) -> list[RoundRecord]:
        """The evaluated rounds."""
        return [record for record in self.records if record.quality.evaluated]

    @cached_property
    def accuracies(self) -> list[float]:
        """Accuracies of the evaluated rounds."""
        return accuracies(self.records)

    @property
    def pooled(self) -> bool:
        """Whether one client holds the data of all clients: centralised training."""
        return self.partition is not None and self.partition.clients < self.config.data.partition.clients

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
            "hosts restarted": [record.hosts.restarted for record in self.records],
        }

    @property
    def moved(self) -> float:
        """The share of client tasks that moved to another host, mostly to balance the load. This is not a failure."""
        tasks = sum(len(record.participants) for record in self.records)
        return sum(record.hosts.rehomed_clients for record in self.records) / max(1, tasks)

    @property
    def had_failures(self) -> bool:
        """Whether there were any failures, which the run may have survived."""
        return any(any(counts) for counts in self.failures.values())

    @cached_property
    def ended_by(self) -> str | None:
        """The limit of `[budget]` that ended the run before its last round, or None."""
        return ended_by(self.config, self.records) if self.state == "finished" else None

    def reaches(self, target: float) -> int | None:
        """Return the index of the first round with the target accuracy."""
        found = reaches(self.records, target)
        return None if found is None else found.round


@dataclass(frozen=True)
class Method:
    """The runs of one method with different seeds."""

    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run with the first seed."""
        return self.runs[0]


def methods_of(runs: Sequence[Run]) -> list[Method]:
    """Group runs by method, in order."""
    return [
        Method(method, tuple(run for run in runs if run.method == method))
        for method in dict.fromkeys(run.method for run in runs)
    ]


def comparable(runs: Sequence[Run]) -> bool:
    """Return whether all runs use the same data and model, so that one can be better than another."""
    return all(run.config.data == runs[0].config.data and run.config.model == runs[0].config.model for run in runs)


def differing_settings(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys of the settings that differ between runs, except `seed`, `hosts`, `metrics` and `compare`."""
    keys = dict.fromkeys(key for settings in runs for key in settings)
    values = {key: {repr(settings.get(key)) for settings in runs} for key in keys}
    return [
        key
        for key in keys
        if len(values[key]) > 1 and key.partition(".")[0] not in ("seed", "hosts", "metrics", "compare")
    ]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read the runs in folders of runs, comparisons or sweeps. Every run gets a unique label.

    Runs without a round are left out. If there are no others, raise an error.
    """
    folders = dict.fromkeys(folder for path in paths for folder in run_folders(path))
    begun = [folder for folder in folders if has_rounds(folder)]
    for folder in folders:
        if folder not in begun:
            if not begun:
                raise ConfigError(_without_rounds(folder))
            log.warning("%s is left out: it %s", folder, "has no rounds yet" if in_use(folder) else STOPPED_EARLY)
    return _labelled([_read(RunFolder(folder)) for folder in begun])


def _labelled(runs: Sequence[Run]) -> list[Run]:
    """Give different labels to runs that have the same one, such as the points of a sweep.

    The labels have the settings that differ, followed by the method if there are others. Labels that would be equal
    where a figure cuts them start with the name of the folder.
    """
    runs = _apart(runs)
    named: dict[Path, Run] = {}
    for label in dict.fromkeys(run.label for run in runs):
        same = [run for run in runs if run.label == label]
        if len(same) == 1:
            named[same[0].folder] = same[0]
            continue
        texts, alone = _distinctions(same), len(same) == len(runs)
        if texts is None:
            labels = [f"{label} ({run.folder.name})" for run in same]
        else:
            labels = texts if alone else [f"{text} ({label})" for text in texts]
            if len({shortened(each) for each in labels}) < len(labels):
                labels = [f"{run.folder.name}: {each}" for run, each in zip(same, labels, strict=True)]
        family = label if alone and texts is not None else None
        for run, own in zip(same, labels, strict=True):
            named[run.folder] = replace(run, label=own, method=own, family=family)
    return [named[run.folder] for run in runs]


def _apart(runs: Sequence[Run]) -> list[Run]:
    """Add the names of folders to all methods of comparisons that share one with each other or with another run.

    Means over seeds are over the runs of one comparison. Several other runs of a method keep its label here.
    """
    others = Counter(run.method for run in runs if run.comparison is None)
    sources: dict[str, set[Path]] = {}
    for run in runs:
        sources.setdefault(run.method, set()).add(run.source)
    shared = {run.method for run in runs if run.comparison is not None and len(sources[run.method]) > 1}
    if not shared:
        return list(runs)
    single = {method for method in shared if others[method] == 1}
    places = dict.fromkeys(run.source for run in runs if run.comparison is not None or run.method in single)
    names = [place.resolve().name for place in places]
    ends = {p: f" ({p if names.count(name) > 1 else name})" for p, name in zip(places, names, strict=True)}

    def named(run: Run, end: str) -> Run:
        return replace(run, label=run.label + end, method=run.method + end, end=end)

    return [named(run, ends.get(run.source, "")) for run in runs]


def _distinctions(same: Sequence[Run]) -> list[str] | None:
    """Return the settings that tell runs apart, such as "lr 0.1, beta 0.5". None if there are too many, or none do."""
    sweeps = dict.fromkeys(run.folder.parent for run in same if is_point(run.folder))
    points = [run_tables(RunFolder(point)) for sweep in sweeps for point in folders_in(sweep)]
    others = [dict(flat_settings(tables)) for tables in points if method_title(tables) == same[0].label]
    # Points without a round are not among the runs.
    keys = differing_settings([*(run.settings for run in same), *others])
    unique = len({tuple(repr(run.settings.get(key)) for key in keys) for run in same}) == len(same)
    if not keys or len(keys) > _MOST_KEYS or not unique:
        return None
    return [point_label({key: run.settings.get(key) for key in keys}) for run in same]


def is_point(folder: Path) -> bool:
    """Return whether a run is a point of a sweep, which may be in progress."""
    return (folder.parent / "sweep.json").exists() or (folder.parent / "tune").is_dir()


def has_rounds(folder: Path) -> bool:
    """Return whether at least one round of a run is complete."""
    return bool(RoundLog(RunFolder(folder).rounds).content())


def _without_rounds(folder: Path) -> str:
    if in_use(folder):
        return f"{folder} has no rounds yet; wait for the first one"
    if (reason := RunFolder(folder).divergence) is not None:
        return f"{folder} has no rounds: {reason}; leave it out, or start it with other settings"
    return f"{folder} {STOPPED_EARLY}; leave it out, or start it again"


def folders_in(path: Path) -> list[Path]:
    """Return `path` if it is a run folder, otherwise the run folders in it."""
    return [path] if RunFolder(path).config.exists() else sorted(file.parent for file in path.glob("*/config.toml"))


def run_folders(path: Path) -> list[Path]:
    """Return the run folders in `path`, in the order of the comparison."""
    found = folders_in(path)
    nested = [] if path in found else sorted({file.parents[1] for file in path.glob("*/*/config.toml")} - set(found))
    inside = ", ".join(map(str, nested[:3])) + (f" and {len(nested) - 3} more" if len(nested) > 3 else "")
    if not found:
        problem = "contains no run (no config.toml)" if path.is_dir() else "is a file" if path.exists() else ""
        fix = f"pass the folders inside it: {inside}" if nested else "pass the folder of a run or of a comparison"
        raise ConfigError(f"{path} {problem}; {fix}" if problem else f"{path}: no such folder; {fix}")
    if nested:
        log.warning("note: comparisons and sweeps inside %s are left out; pass their folders: %s", path, inside)
    # A run that failed in its first round has nothing to show.
    found = [folder for folder in found if has_rounds(folder)] or found
    order = [path / slug(name) for name in planned_methods(path)]
    return [*(folder for folder in order if folder in found), *(folder for folder in found if folder not in order)]


def _read(folder: RunFolder) -> Run:
    tables = run_tables(folder)
    records = tuple(RoundLog(folder.rounds))
    methods = planned_methods(folder.path.parent)
    planned = next((label for label in methods if slug(label) == folder.path.name), None)
    label, config = planned or method_title(tables), _readable_config(tables)
    return Run(
        label,
        methods.get(label, label) if planned else label,
        dict(flat_settings(tables)),
        folder.path,
        config,
        records,
        read_partition(folder.partition),
        _state(folder, config, len(records)),
        comparison=folder.path.parent if planned else None,
    )


def _state(folder: RunFolder, config: Config, rounds: int) -> State:
    """Return the state of a run. If it is running, a summary in its folder is from before it was resumed."""
    if rounds >= config.rounds:
        return "finished"
    if in_use(folder.path):
        return "running"
    return "finished" if folder.summary.exists() else "stopped"


def flat_settings(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings in nested tables by key, such as "algorithm.lr"."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from flat_settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class _ForeignPartition(Partitioner):
    """A partition whose class is not in raybcgd. A report shows its name and does not import it."""

    kind: str
    options: dict[str, Any]

    @property
    def label(self) -> str:
        return self.kind


def _readable_config(tables: Mapping[str, Any]) -> Config:
    """Return the parts of a config that a report needs, without importing code that the config names."""
    kept = {name: value for name, value in tables.items() if name not in ("algorithm", "wire", "compare", "analysis")}
    data = kept.get("data")
    partition = data.get("partition") if isinstance(data, dict) else None
    if isinstance(data, dict) and isinstance(partition, dict) and PARTITIONS.is_foreign(partition.get("kind")):
        shared = {name: value for name, value in partition.items() if name in Partitioner.model_fields}
        options = {name: value for name, value in partition.items() if name not in ("kind", *shared)}
        table = {**shared, "kind": partition["kind"], "options": options}
        kept["data"] = {**data, "partition": _ForeignPartition.model_validate(table)}
    return make_config(kept)


def method_title(tables: Mapping[str, Any]) -> str:
    """Return the method's name as its paper writes it, or the name of a class outside raybcgd."""
    method = tables.get("algorithm", {})
    name = method.get("name", DEFAULT_ALGORITHM) if isinstance(method, dict) else method
    return str(name).rpartition(":")[2] if ALGORITHMS.is_foreign(name) else title(ALGORITHMS.resolve(name))
