"""The results of a run: `summary.json`, and a row in the table of a comparison."""

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from raybcgd.errors import ConfigError, first_line
from raybcgd.record.rounds import RoundRecord
from raybcgd.version import VERSION

Ranking = Literal[
    "last_tenth_accuracy", "best_accuracy", "final_accuracy", "last_tenth_loss", "best_loss", "upload_d_to_target"
]
"""How a sweep ranks its points: by highest accuracy, lowest loss, or smallest upload."""


def accuracies(records: Iterable[RoundRecord]) -> list[float]:
    """Return the accuracies of the evaluated rounds."""
    return [record.quality.accuracy for record in records if record.quality.accuracy is not None]


def losses_of(records: Iterable[RoundRecord]) -> list[float]:
    """Return the losses of the evaluated rounds."""
    return [record.quality.loss for record in records if record.quality.loss is not None]


def qualities(records: Iterable[RoundRecord]) -> list[float]:
    """Return the accuracies of the evaluated rounds, or the negative losses of a regression: higher is better."""
    known = list(records)
    return accuracies(known) or [-loss for loss in losses_of(known)]


def last_tenth(values: Sequence[float]) -> tuple[float, float | None] | None:
    """Return the mean and standard deviation of the last tenth of the values, which is how papers report accuracy.

    One value has no deviation.
    """
    tail = values[-max(1, len(values) // 10) :]
    return (float(np.mean(tail)), float(np.std(tail)) if len(tail) > 1 else None) if tail else None


def reaches(records: Iterable[RoundRecord], target: float) -> RoundRecord | None:
    """Return the first round whose accuracy is at least `target`, or None."""
    return next((r for r in records if r.quality.accuracy is not None and r.quality.accuracy >= target), None)


def keeps(records: Sequence[RoundRecord], target: float) -> RoundRecord | None:
    """Return the first round from which the accuracy stays at or above `target`, or None."""
    found = None
    for record in records:
        if record.quality.accuracy is not None:
            found = None if record.quality.accuracy < target else found or record
    return found


def typical_seconds(records: Sequence[RoundRecord]) -> float | None:
    """Return the median time per round, without the first round, unless it is the only one."""
    seconds = [record.timing.seconds for record in records]
    return float(np.median(seconds[1:] or seconds)) if seconds else None


def read_summary(path: Path) -> dict[str, Any]:
    """Return the content of a `summary.json`. Raise an error if it is damaged."""
    try:
        found = json.loads(path.read_text())
        if isinstance(found, dict) and "rounds" in found:
            return found
        problem = "it does not have the number of rounds"
    except ValueError as error:  # not JSON, or not UTF-8
        problem = first_line(error)
    raise ConfigError(f"{path} is damaged ({problem}); delete it, then resume the run to write it again")


def summarise(records: Sequence[RoundRecord], models: Sequence[np.ndarray], total_seconds: float) -> dict[str, Any]:
    """Return the summary of a run, for `summary.json`. Its `seconds` exclude the start-up."""
    values, losses = accuracies(records), losses_of(records)
    tail, loss_tail = last_tenth(values), last_tenth(losses)
    evaluated = [record.quality.loss for record in records if record.quality.evaluated]
    simulated = [r.traffic.simulated_seconds for r in records if r.traffic.simulated_seconds is not None]
    digest = hashlib.sha256()
    for model in models:
        digest.update(np.ascontiguousarray(model).data)
    totals = ("upload_floats", "upload_bytes", "download_floats", "download_bytes")
    return {
        "rounds": len(records),
        "final_accuracy": values[-1] if values else None,
        "best_accuracy": max(values, default=None),
        "last_tenth_accuracy": None if tail is None else tail[0],
        "final_loss": evaluated[-1] if evaluated else None,
        "best_loss": min(losses, default=None),
        "last_tenth_loss": None if loss_tail is None else loss_tail[0],
        **_other_quality(records),
        "upload_d_total": records[-1].traffic.upload_d_total if records else 0.0,
        **{name: sum(getattr(record.traffic, name) for record in records) for name in totals},
        "simulated_seconds": sum(simulated) if simulated else None,
        "seconds": sum(record.timing.seconds for record in records),
        "total_seconds": total_seconds,
        "round_seconds_median": typical_seconds(records),
        "sha256": digest.hexdigest(),
    }


def _other_quality(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """Return the last values of what only some runs measure: the clients' accuracies, and custom metrics."""
    last = next((record.quality for record in reversed(records) if record.quality.evaluated), None)
    found = {} if last is None else {"client_accuracy": last.clients, "metrics": last.metrics}
    return {name: dict(value) for name, value in found.items() if value is not None}


class Standing(NamedTuple):
    """A row of a comparison's table."""

    label: str
    algorithm: str
    settings: str
    """The hyper-parameters, as in `[algorithm]`."""
    rounds: int
    final_accuracy: float | None
    best_accuracy: float | None
    last_tenth_accuracy: float | None
    """Mean over the last tenth of the evaluated rounds."""
    last_tenth_deviation: float | None
    """Standard deviation of `last_tenth_accuracy`, or of the loss of a regression, over seeds; None with one seed."""
    upload_d_per_round: float
    """Mean upload per sampled client and round, in units of d: bytes / (4 d)."""
    upload_d_total: float
    """The same, summed over all rounds."""
    upload_d_to_target: float | None
    """The same until the target accuracy is first reached; None if a run never reaches it."""
    upload_floats: float
    """Values uploaded by all clients."""
    upload_floats_to_target: float | None
    upload_bytes: float
    """Bytes uploaded by all clients."""
    upload_bytes_to_target: float | None
    rounds_to_target: float | None
    keeps_target: bool
    """Whether the accuracy stays at or above the target from some round to the end, with every seed."""
    seconds: float
    """Time of all rounds, without the start-up."""
    seeds: tuple[int, ...] = ()
    """The seeds. The numbers are means over the runs that finished. Empty: one run."""
    failures: tuple[str, ...] = ()
    """Why runs did not finish. If none did, `rounds` is 0 and the numbers have no meaning."""
    final_loss: float | None = None
    best_loss: float | None = None
    last_tenth_loss: float | None = None
    """Mean over the last tenth of the evaluated rounds."""
    reached: int = 0
    """How many of the finished runs reach the target accuracy."""
    round_seconds_median: float | None = None
    """Median time over all rounds. One-off costs, such as imports in the first round, hardly change it."""
    pooled: bool = False
    """Whether one client holds all data: centralised training, whose uploads have no meaning."""
    ended_by: tuple[str, ...] = ()
    """The limits of `[budget]` that ended runs before their last round."""

    @property
    def finished(self) -> int:
        """The number of runs that finished."""
        return (len(self.seeds) or 1) - len(self.failures)

    @property
    def regression(self) -> bool:
        """Whether the run has losses, but no accuracies."""
        return self.best_accuracy is None and self.best_loss is not None


def standing(
    label: str, settings: str, records: Sequence[RoundRecord], summary: Mapping[str, Any], target: float
) -> Standing:
    """Return a run's row in the table of a comparison."""
    reached = reaches(records, target)
    until = [] if reached is None else records[: reached.round + 1]
    copied = (
        "algorithm",
        "rounds",
        "final_accuracy",
        "best_accuracy",
        "last_tenth_accuracy",
        "final_loss",
        "best_loss",
        "last_tenth_loss",
        "upload_d_total",
        "upload_floats",
        "upload_bytes",
        "seconds",
        "round_seconds_median",
    )
    return Standing(
        label=label,
        settings=settings,
        last_tenth_deviation=None,
        upload_d_per_round=summary["upload_d_total"] / max(1, summary["rounds"]),
        upload_d_to_target=None if reached is None else reached.traffic.upload_d_total,
        upload_floats_to_target=sum(record.traffic.upload_floats for record in until) or None,
        upload_bytes_to_target=sum(record.traffic.upload_bytes for record in until) or None,
        rounds_to_target=None if reached is None else reached.round + 1,
        keeps_target=keeps(records, target) is not None,
        reached=int(reached is not None),
        ended_by=(summary["ended_by"],) if summary.get("ended_by") else (),
        **{name: summary[name] for name in copied if name in summary},
    )


def failed_standing(label: str, algorithm: str, settings: str) -> Standing:
    """Return the row of a method none of whose runs finished."""
    counts = ("rounds", "upload_d_per_round", "upload_d_total", "upload_floats", "upload_bytes", "seconds")
    required = (name for name in Standing._fields if name not in Standing._field_defaults)
    numbers = dict.fromkeys(required) | dict.fromkeys(counts, 0)
    texts = {"label": label, "algorithm": algorithm, "settings": settings}
    return Standing(**{**numbers, **texts, "keeps_target": False})  # type: ignore[arg-type]


def over_seeds(standings: Mapping[int, Standing]) -> Standing:
    """Return the row of a method from its rows by seed: means, and the deviation of the last-tenth accuracy.

    A mean is None if one of the runs has no such number, such as the upload to a target that it never reached.
    """
    rows = list(standings.values())
    if len(rows) == 1:
        return rows[0]
    means: dict[str, Any] = {}
    for name in Standing._fields:
        values = [getattr(row, name) for row in rows]
        if all(isinstance(value, int | float) for value in values):
            means[name] = float(np.mean(values))
        elif any(isinstance(value, int | float) for value in values):
            means[name] = None
    tails = [row.last_tenth_loss if row.regression else row.last_tenth_accuracy for row in rows]
    deviation = None if None in tails else float(np.std(np.array(tails, dtype=float), ddof=1))
    means |= {
        "rounds": round(means["rounds"]),
        "last_tenth_deviation": deviation,
        "keeps_target": all(row.keeps_target for row in rows),
        "reached": sum(row.reached for row in rows),
        "pooled": rows[0].pooled,
        "ended_by": tuple(dict.fromkeys(limit for row in rows for limit in row.ended_by)),
    }
    return rows[0]._replace(**means, seeds=tuple(standings))


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a result depends on."""
    return {
        "raybcgd": VERSION,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "ray")},
    }
