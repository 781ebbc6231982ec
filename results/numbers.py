"""The numbers of the page, computed from the stored runs."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from results.store import Entry, Store, best

SHARE = 0.95
"""The target is this share of FedAvg's final accuracy."""
FEWER_FLOATS, FEWER_BITS = 2.5, 10.0
"""The factors that block uploads promise, without and with QSGD."""
SMOOTH = 3
"""Evaluations in the running mean, for the check that does not depend on a lucky evaluation."""


class Row(NamedTuple):
    """One method: means over its seeds. Numbers are None if a run diverged."""

    label: str
    seeds: int
    settings: str
    """What tuning chose."""
    diverged: int = 0
    """Seeds whose run diverged."""
    accuracy: float | None = None
    """Mean over the last tenth of the evaluations, in percent."""
    deviation: float | None = None
    """Standard deviation over the seeds. None with one seed."""
    gain: float | None = None
    """Accuracy minus FedAvg's on the same seeds, in points."""
    upload_d: float | None = None
    """Upload until the target is first reached. None: not reached by every seed, or no target."""
    smooth_d: float | None = None
    """The same for the running mean of three evaluations."""
    saved: float | None = None
    """FedAvg's `upload_d` on the same seeds, divided by this one."""
    smooth_saved: float | None = None
    """The same for `smooth_d`."""
    target_rounds: float | None = None
    """Rounds until the target is first reached."""
    rounds: int | None = None
    best: float | None = None
    """Highest accuracy, in percent."""
    loss: float | None = None
    """Test loss at the end."""


def rows(store: Store, target: float | None = None) -> list[Row]:
    """Return the methods of a study in its order."""
    return [row(store, label, target) for label in store.labels()]


def row(store: Store, label: str, target: float | None = None) -> Row:
    """Return one method of a study."""
    runs = store.of("final", label)
    good = [run for run in runs if "error" not in run]
    if len(good) < len(runs):
        return Row(label, len(runs), tuned(store, label), diverged=len(runs) - len(good))
    accuracies = [100 * run["last_tenth_accuracy"] for run in good]
    first = [None if target is None else reached(run, target) for run in good]
    upload_d, smooth_d = _upload_d(good, target), _upload_d(good, target, SMOOTH)
    base = [run for run in store.of("final", "FedAvg") if run["seed"] in {one["seed"] for one in good}]
    base = base if len(base) == len(good) and all("error" not in run for run in base) else []
    accuracy = float(np.mean(accuracies))
    return Row(
        label=label,
        seeds=len(good),
        accuracy=accuracy,
        deviation=float(np.std(accuracies, ddof=1)) if len(good) > 1 else None,
        upload_d=upload_d,
        smooth_d=smooth_d,
        saved=_ratio(_upload_d(base, target), upload_d),
        smooth_saved=_ratio(_upload_d(base, target, SMOOTH), smooth_d),
        target_rounds=mean([None if at is None else float(at.round) for at in first]),
        gain=accuracy - float(np.mean([100 * run["last_tenth_accuracy"] for run in base])) if base else None,
        rounds=round(float(np.mean([run["rounds"] for run in good]))),
        best=float(np.mean([100 * max(run["curve"]["accuracy"]) for run in good])),
        loss=mean([run["curve"]["loss"][-1] for run in good]),
        settings=tuned(store, label),
    )


def _upload_d(runs: Sequence[Entry], target: float | None, smooth: int = 1) -> float | None:
    """Return the mean upload until the target. None: a run does not reach it, or there is no target."""
    found = [None if target is None else reached(run, target, smooth) for run in runs]
    return mean([None if at is None else at.upload_d for at in found])


def _ratio(base: float | None, value: float | None) -> float | None:
    return None if base is None or value is None else base / value


def target_of(store: Store) -> float | None:
    """Return the target of a study: 95 % of the final accuracy of FedAvg. None if FedAvg has no result."""
    found = [run["last_tenth_accuracy"] for run in store.of("final", "FedAvg") if "error" not in run]
    return SHARE * float(np.mean(found)) if found else None


class Reached(NamedTuple):
    """When a run reached its target."""

    round: int
    upload_d: float


def reached(run: Entry, target: float, smooth: int = 1) -> Reached | None:
    """Return the first evaluation at which the mean of the last `smooth` evaluations is at least the target."""
    curve = run["curve"]
    for last in range(smooth - 1, len(curve["accuracy"])):
        if np.mean(curve["accuracy"][last + 1 - smooth : last + 1]) >= target:
            return Reached(curve["round"][last], curve["upload_d"][last])
    return None


def accuracy_after(store: Store, label: str, limit: float, unit: str = "round") -> float:
    """Return the mean of the last three evaluations up to a round, or up to an upload in d, over all seeds."""
    found: list[float] = []
    for run in store.of("final", label):
        curve = run.get("curve", {unit: [], "accuracy": []})
        until = [value for at, value in zip(curve[unit], curve["accuracy"], strict=True) if at <= limit]
        found += until[-SMOOTH:]
    return float(np.mean(found)) if found else math.nan


def tuned(store: Store, label: str) -> str:
    """Return the settings that tuning chose, as text."""
    found = best(store.of("tune", label))
    if found is None:
        return ""
    return ", ".join(f"{key.rpartition('.')[2]} {value:g}" for key, value in found["point"].items())


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is missing."""
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if values and len(found) == len(values) else None


class Claim(NamedTuple):
    """What the runs of a study say about a claim."""

    measured: str
    holds: bool


def claims(store: Store) -> list[Claim]:
    """Return the three claims for a study: fewer floats, fewer bits with QSGD, no loss of accuracy.

    The study must have final runs of FedAvg, FedBCGD, FedBCGD+ and both with QSGD.
    """
    target = target_of(store)
    found = {row.label: row for row in rows(store, target)}
    plain, coded = ("FedBCGD", "FedBCGD+"), ("QSGD+FedBCGD", "QSGD+FedBCGD+")
    return [
        _saving([found[label] for label in plain], FEWER_FLOATS),
        _saving([found[label] for label in coded], FEWER_BITS),
        _no_worse([found[label] for label in (*plain, *coded)]),
    ]


def _saving(methods: list[Row], factor: float) -> Claim:
    parts = [f"{one.label} {saving(one)}" for one in methods]
    return Claim(", ".join(parts), any(one.saved is not None and one.saved >= factor for one in methods))


def saving(one: Row) -> str:
    """Return the factor as text, and in parentheses that for the running mean."""
    if one.saved is None:
        return "never"
    return f"{one.saved:.1f} x ({'never' if one.smooth_saved is None else f'{one.smooth_saved:.1f}'})"


def _no_worse(methods: list[Row]) -> Claim:
    parts = [f"{one.label} {'diverged' if one.gain is None else f'{one.gain:+.1f}'}" for one in methods]
    return Claim(", ".join(parts) + " points", all(one.gain is not None and one.gain >= 0 for one in methods))
