"""The numbers of the page, computed from the stored runs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from results.store import Entry, Store, best

SHARE = 0.95
"""The target is this share of FedAvg's final accuracy."""
SMOOTH = 3
"""Evaluations in the running mean, for the check that does not depend on a lucky evaluation."""


class Row(NamedTuple):
    """One method: means over its seeds."""

    label: str
    seeds: int
    accuracy: float | None
    """Mean over the last tenth of the evaluations, in percent. None: the run diverged."""
    deviation: float | None
    """Standard deviation over the seeds. None with one seed."""
    upload_d: float | None
    """Upload until the target is first reached. None: not reached by every seed, or no target."""
    smooth_d: float | None
    """The same for the running mean of three evaluations."""
    total_d: float | None
    rounds: int | None
    best: float | None
    """Highest accuracy, in percent."""
    loss: float | None
    """Test loss at the end."""
    settings: str


def rows(store: Store, target: float | None = None) -> list[Row]:
    """Return the methods of a study in its order."""
    return [row(store, label, target) for label in store.labels()]


def row(store: Store, label: str, target: float | None = None) -> Row:
    """Return one method of a study."""
    runs = store.of("final", label)
    good = [run for run in runs if "error" not in run]
    settings = tuned(store, label)
    if len(good) < len(runs):
        return Row(label, len(runs), None, None, None, None, None, None, None, None, settings)
    accuracies = [100 * run["last_tenth_accuracy"] for run in good]
    return Row(
        label=label,
        seeds=len(good),
        accuracy=float(np.mean(accuracies)),
        deviation=float(np.std(accuracies, ddof=1)) if len(good) > 1 else None,
        upload_d=None if target is None else _mean([reached(run, target) for run in good]),
        smooth_d=None if target is None else _mean([reached(run, target, SMOOTH) for run in good]),
        total_d=float(np.mean([run["upload_d"] for run in good])),
        rounds=round(float(np.mean([run["rounds"] for run in good]))),
        best=float(np.mean([100 * max(run["curve"]["accuracy"]) for run in good])),
        loss=_mean([run["curve"]["loss"][-1] for run in good]),
        settings=settings,
    )


def target_of(store: Store, label: str = "FedAvg") -> float | None:
    """Return the target of a study: 95 % of the final accuracy of FedAvg. None if FedAvg has no result."""
    accuracy = row(store, label).accuracy if label in store.labels() else None
    return None if accuracy is None else SHARE * accuracy / 100


def reached(run: Entry, target: float, smooth: int = 1) -> float | None:
    """Return the upload at the first evaluation whose running mean over `smooth` evaluations is the target or more."""
    accuracies = run["curve"]["accuracy"]
    for last in range(smooth - 1, len(accuracies)):
        if np.mean(accuracies[last + 1 - smooth : last + 1]) >= target:
            return float(run["curve"]["upload_d"][last])
    return None


def tuned(store: Store, label: str) -> str:
    """Return the settings that tuning chose, as text."""
    found = best(store.of("tune", label))
    if found is None:
        return ""
    return ", ".join(f"{key.rpartition('.')[2]} {value:g}" for key, value in found["point"].items())


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if values and len(found) == len(values) else None


class Claim(NamedTuple):
    """A claim about one study, and what the runs say."""

    text: str
    measured: str
    holds: bool | None
    """None: the runs are missing."""


def claims(store: Store) -> list[Claim]:
    """Return the three claims for a study with FedAvg, FedBCGD, FedBCGD+ and both with QSGD."""
    target = target_of(store)
    found = {row.label: row for row in rows(store, target)}
    plain, coded = ("FedBCGD", "FedBCGD+"), ("QSGD+FedBCGD", "QSGD+FedBCGD+")
    return [
        _saving(found, plain, 2.5, "uploaded floats"),
        _saving(found, coded, 10.0, "uploaded bits"),
        _no_worse(found, (*plain, *coded)),
    ]


def _saving(found: dict[str, Row], labels: tuple[str, ...], factor: float, unit: str) -> Claim:
    text = f"{' or '.join(labels)} needs at least {factor:g} x fewer {unit} than FedAvg to 95 % of its accuracy"
    base = found["FedAvg"].upload_d if "FedAvg" in found else None
    present = [label for label in labels if label in found]
    if base is None or not present:
        return Claim(text, "-", None)
    ratios = {label: None if found[label].upload_d is None else base / found[label].upload_d for label in present}
    parts = [f"{label} {'never' if ratio is None else f'{ratio:.1f} x'}" for label, ratio in ratios.items()]
    return Claim(text, ", ".join(parts), any(ratio is not None and ratio >= factor for ratio in ratios.values()))


def _no_worse(found: dict[str, Row], labels: tuple[str, ...]) -> Claim:
    text = "the final accuracy is no worse than FedAvg's"
    base = found["FedAvg"].accuracy if "FedAvg" in found else None
    present = [label for label in labels if label in found]
    if base is None or not present:
        return Claim(text, "-", None)
    parts, holds = [], True
    for label in present:
        accuracy = found[label].accuracy
        parts.append(f"{label} {'diverged' if accuracy is None else f'{accuracy - base:+.1f}'}")
        holds = holds and accuracy is not None and accuracy >= base
    return Claim(text, ", ".join(parts) + " points", holds)
