"""`planned.json` and `comparison.json`: the runs of a comparison before it starts, and its results."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from raybcgd.errors import ConfigError
from raybcgd.record.summary import Standing
from raybcgd.section import Section
from raybcgd.storage import slug, write_atomic

Record = TypeVar("Record", bound=Section)


class ComparisonRecord(Section):
    """The target accuracy and one `Standing` per variant, in order."""

    target: float
    runs: tuple[dict[str, Any], ...]

    @property
    def methods(self) -> dict[str, str]:
        """The variant of each run, by the run's label, in order: one run per variant and seed."""
        rows = ((str(run.get("label", "")), run.get("seeds") or ()) for run in self.runs)
        return {label: name for name, seeds in rows for label in run_labels(name, seeds)}


class PlannedRun(Section):
    """A run of a comparison, which may not have started."""

    label: str
    variant: str
    seed: int
    folder: Annotated[str, Field(pattern=r"^[a-z0-9_][a-z0-9_.-]*$")]
    """The name of its folder, which is in that of the comparison."""
    failure: str | None = None
    """Why it failed. None: it did not, or not yet."""
    diverged: bool = False
    """Whether it diverged, so that it would fail again with the same settings."""


class Plan(Section):
    """The runs of a comparison, in order. The comparison adds failures as they occur."""

    runs: tuple[PlannedRun, ...]

    @property
    def methods(self) -> dict[str, str]:
        """The variant of each run, by the run's label, in order."""
        return {run.label: run.variant for run in self.runs}


def run_labels(label: str, seeds: Sequence[int]) -> list[str]:
    """Return the labels of a variant's runs. They name the folders, and the runs in a report."""
    return [f"{label}, seed {seed}" for seed in seeds] if len(seeds) > 1 else [label]


def write_plan(
    folder: Path,
    variants: Iterable[str],
    seeds: Sequence[int],
    failures: Mapping[str, str] = MappingProxyType({}),
    diverged: Collection[str] = (),
) -> None:
    """Write `planned.json` to a folder, so that a report can group the runs before the comparison ends.

    `failures` are the reasons by the labels of the failed runs, and `diverged` the labels of those that diverged.
    """
    planned = tuple(
        PlannedRun(
            label=label,
            variant=variant,
            seed=seed,
            folder=slug(label),
            failure=failures.get(label),
            diverged=label in diverged,
        )
        for variant in variants
        for label, seed in zip(run_labels(variant, seeds), seeds, strict=True)
    )
    write_atomic(folder / "planned.json", Plan(runs=planned).model_dump_json(indent=2) + "\n")


def read_plan(folder: Path) -> Plan | None:
    """Read `planned.json` from a folder. Return None if there is no such file, as in folders of raybcgd 0.2.0."""
    return _read(folder / "planned.json", Plan, "a list of planned runs")


def write_comparison(folder: Path, standings: Iterable[Standing], target: float) -> None:
    """Write `comparison.json` to a folder."""
    record = ComparisonRecord(target=target, runs=tuple(line._asdict() for line in standings))
    write_atomic(folder / "comparison.json", record.model_dump_json(indent=2) + "\n")


def read_comparison(folder: Path) -> ComparisonRecord | None:
    """Read `comparison.json` from a folder. Return None if there is no such file."""
    return _read(folder / "comparison.json", ComparisonRecord, "a comparison record")


def planned_methods(folder: Path) -> dict[str, str]:
    """Return the variant of each run by the run's label, in order. Empty if the folder is not that of a comparison."""
    found = read_plan(folder) or read_comparison(folder)  # of a comparison that continues, the plan is newer
    return {} if found is None else found.methods


def _read(file: Path, kind: type[Record], what: str) -> Record | None:
    try:
        return kind.model_validate_json(file.read_bytes()) if file.exists() else None
    except ValidationError:
        raise ConfigError(f"{file} is not {what}; restore it, or delete it") from None
