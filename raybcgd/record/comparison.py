"""`comparison.json`: the results of a comparison."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raybcgd.errors import ConfigError
from raybcgd.record.summary import Standing
from raybcgd.section import Section
from raybcgd.storage import write_atomic


class ComparisonRecord(Section):
    """The target accuracy and one `Standing` per variant, in order."""

    target: float
    runs: tuple[dict[str, Any], ...]

    @property
    def methods(self) -> dict[str, str]:
        """The variant of each run, by the run's label, in order: one run per variant and seed."""
        rows = ((str(run.get("label", "")), run.get("seeds") or ()) for run in self.runs)
        return {label: name for name, seeds in rows for label in run_labels(name, seeds)}


def run_labels(label: str, seeds: Sequence[int]) -> list[str]:
    """Return the labels of a variant's runs. They name the folders, and the runs in a report."""
    return [f"{label}, seed {seed}" for seed in seeds] if len(seeds) > 1 else [label]


def write_comparison(folder: Path, standings: Iterable[Standing], target: float) -> None:
    """Write `comparison.json` to a folder."""
    record = ComparisonRecord(target=target, runs=tuple(line._asdict() for line in standings))
    write_atomic(folder / "comparison.json", record.model_dump_json(indent=2) + "\n")


def read_comparison(folder: Path) -> ComparisonRecord | None:
    """Read `comparison.json` from a folder. Return None if there is no such file."""
    file = folder / "comparison.json"
    try:
        return ComparisonRecord.model_validate_json(file.read_bytes()) if file.exists() else None
    except ValidationError:
        raise ConfigError(f"{file} is not a comparison record; restore it, or delete it") from None
