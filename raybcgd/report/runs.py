"""Finished runs, and runs that are still going on, as their folders show them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict, ValidationError

from raybcgd.algorithms.contract import title
from raybcgd.config import Config, load_config
from raybcgd.errors import ConfigError
from raybcgd.record.partition import PartitionRecord, read_partition
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.standing import uploaded_to
from raybcgd.section import Section
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
    order = [slug(label) for label in _comparison(path).labels]
    yield from sorted(inside, key=lambda child: order.index(child.name) if child.name in order else len(order))


class _Comparison(Section):
    """What is read of a `comparison.json`."""

    model_config = ConfigDict(extra="ignore")

    target: float | None = None
    runs: tuple[dict[str, Any], ...] = ()

    @property
    def labels(self) -> list[str]:
        """Those of its runs, in their order."""
        return [str(line.get("label", "")) for line in self.runs]


def _comparison(folder: Path) -> _Comparison:
    """That in a folder; an empty one where there is none."""
    file = folder / "comparison.json"
    try:
        return _Comparison.model_validate_json(file.read_bytes()) if file.exists() else _Comparison()
    except ValidationError:
        raise ConfigError(f"{file} is not what `raybcgd compare` writes; restore or remove it") from None


def _read(folder: Path) -> Run:
    here = RunFolder(folder)
    records = tuple(here.rounds)
    if not records:
        raise ConfigError(f"{folder} has no rounds yet; wait for the first one")
    config = load_config(here.config)
    labels = {slug(label): label for label in _comparison(folder.parent).labels}
    label = labels.get(folder.name) or title(type(config.algorithm))
    return Run(label, folder, config, records, read_partition(folder / "partition.json"))


def target_of(paths: Sequence[Path], runs: Sequence[Run]) -> float:
    """The accuracy that a comparison in these folders counts to; else that of the runs' metrics."""
    for folder in (*paths, *(run.folder.parent for run in runs)):
        target = _comparison(folder).target
        if target is not None:
            return target
    return runs[0].config.metrics.target
