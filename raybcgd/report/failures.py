"""Runs that failed or stopped without a result, which a report lists but does not draw."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from raybcgd.config import run_tables
from raybcgd.errors import ConfigError
from raybcgd.record.comparison import read_comparison, read_plan, run_labels
from raybcgd.record.lock import in_use
from raybcgd.report.runs import STOPPED_EARLY, Run, flat_settings, folders_in, has_rounds, method_title
from raybcgd.report.sweeps import point_label
from raybcgd.storage import RunFolder, slug


class FailedRun(NamedTuple):
    """A failed run of a comparison or a sweep, or a run that stopped before its first round was complete."""

    label: str
    method: str
    reason: str
    folder: Path
    known: str = ""
    """The method and its hyper-parameters, if the comparison recorded them."""
    settings: Mapping[str, Any] = MappingProxyType({})
    """All settings by key, as in `Run`. Empty: its folder has no config."""


def failed_runs(paths: Sequence[Path], runs: Sequence[Run] = ()) -> list[FailedRun]:
    """Return the failed runs in folders of runs, comparisons or sweeps. They have no summary, and possibly no rounds.

    A failed run that is also in `runs` keeps its label and method from there.
    """
    found: dict[Path, FailedRun] = {}
    family = runs[0].family if runs else None
    for path in paths:
        folder = path.parent if RunFolder(path).config.exists() else path
        for one in (*_of_comparison(folder), *_of_plan(folder), *_of_sweep(folder, family), *_stopped(path)):
            ended = not RunFolder(one.folder).summary.exists() and not in_use(one.folder)
            if ended and path in (one.folder, one.folder.parent):
                found.setdefault(one.folder, one)
    ends = {run.comparison: run.end for run in runs}
    for folder, one in found.items():
        end = ends.get(folder.parent, "")
        found[folder] = one._replace(label=one.label + end, method=one.method + end)
    for run in runs:
        if run.folder in found:
            found[run.folder] = found[run.folder]._replace(label=run.label, method=run.method)
    return [_with_settings(one) for one in found.values()]


def _with_settings(one: FailedRun) -> FailedRun:
    folder = RunFolder(one.folder)
    return one._replace(settings=dict(flat_settings(run_tables(folder)))) if folder.config.exists() else one


def _of_comparison(folder: Path) -> Iterator[FailedRun]:
    comparison = read_comparison(folder)
    for row in () if comparison is None else comparison.runs:
        names = run_labels(str(row.get("label", "")), row.get("seeds") or ())
        unfinished = [name for name in names if not RunFolder(folder / slug(name)).summary.exists()]
        known = ", ".join(filter(None, [f"name = {row.get('algorithm') or 'unknown'}", row.get("settings")]))
        for name, reason in zip(unfinished, row.get("failures") or (), strict=False):
            yield FailedRun(name, row["label"], str(reason), folder / slug(name), known)


def _of_plan(folder: Path) -> Iterator[FailedRun]:
    """Yield the failed runs of a comparison in progress."""
    plan = read_plan(folder)
    for run in () if plan is None else plan.runs:
        if run.failure is not None:
            yield FailedRun(run.label, run.variant, run.failure, folder / run.folder)


def _of_sweep(folder: Path, family: str | None) -> Iterator[FailedRun]:
    """Yield the points with an error. They have no results, so their other entries are settings.

    Like those of runs, labels have only the settings that differ, and no method if all runs are of one `family`.
    """
    file = folder / "sweep.json"
    if not file.exists():
        return
    try:
        points = [dict(point) for point in json.loads(file.read_bytes())["points"]]
        failed = [dict(point) for point in points if point["error"] is not None]
        places = [folder / str(point.pop("folder")) for point in failed]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{file} is not a sweep record; restore it, or delete it") from None
    for settings, place in zip(failed, places, strict=True):
        reason = str(settings.pop("error"))
        differing = [key for key in settings if len({repr(point.get(key)) for point in points}) > 1]
        values, method = {key: settings[key] for key in differing or settings}, None
        if RunFolder(place).config.exists():  # otherwise, the run is on the node where it ran
            tables = run_tables(RunFolder(place))
            recorded, method = dict(flat_settings(tables)), method_title(tables)
            values = {key: recorded.get(key, value) for key, value in values.items()}
        text = point_label(values)
        label = text if method in (None, family) else f"{text} ({method})"
        yield FailedRun(label, label, reason, place)


def _stopped(path: Path) -> Iterator[FailedRun]:
    for folder in folders_in(path):
        if not has_rounds(folder):
            yield FailedRun(str(folder), str(folder), f"{STOPPED_EARLY}; start it again", folder)
