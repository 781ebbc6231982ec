"""What runs have come to, as numbers and as tables."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from raybcgd.record.rounds import RoundRecord


class Standing(NamedTuple):
    """A line of a comparison."""

    label: str
    algorithm: str
    settings: str
    """The hyper-parameters, as they would stand in `[algorithm]`."""
    rounds: int
    final_accuracy: float | None
    best_accuracy: float | None
    last_tenth_accuracy: float | None
    """The mean over the last tenth of the rounds that were judged."""
    upload_d_per_round: float
    """Mean upload of a sampled client in a round, in units of d."""
    upload_d: float
    """The same, summed over all rounds."""
    upload_d_to_target: float | None
    """Until the target accuracy was first reached; None where it never was."""
    rounds_to_target: int | None
    seconds: float


def uploaded_to(records: Iterable[RoundRecord], target: float) -> RoundRecord | None:
    """The first round at which the accuracy is at least `target`; its `upload_d_total` is what that has cost."""
    return next((r for r in records if r.accuracy is not None and r.accuracy >= target), None)


def standing(
    label: str, settings: str, records: Sequence[RoundRecord], summary: Mapping[str, Any], target: float
) -> Standing:
    """A run's line in a comparison."""
    reached = uploaded_to(records, target)
    return Standing(
        label=label,
        algorithm=summary["algorithm"],
        settings=settings,
        rounds=summary["rounds"],
        final_accuracy=summary["final_accuracy"],
        best_accuracy=summary["best_accuracy"],
        last_tenth_accuracy=summary["last_tenth_accuracy"],
        upload_d_per_round=summary["upload_d"] / max(1, summary["rounds"]),
        upload_d=summary["upload_d"],
        upload_d_to_target=None if reached is None else reached.upload_d_total,
        rounds_to_target=None if reached is None else reached.round + 1,
        seconds=summary["seconds"],
    )


def _cells(line: Standing) -> list[str]:
    to_target = "never" if line.upload_d_to_target is None else f"{line.upload_d_to_target:.1f}"
    rounds_to_target = "-" if line.rounds_to_target is None else str(line.rounds_to_target)
    return [
        line.label,
        percent(line.final_accuracy),
        percent(line.best_accuracy),
        f"{line.upload_d_per_round:.3f}",
        f"{line.upload_d:.1f}",
        to_target,
        rounds_to_target,
        f"{line.seconds:.1f}",
    ]


def _headings(target: float) -> list[str]:
    goal = f"{100 * target:g} %"
    return ["method", "final", "best", "d/round", "d in all", f"d to {goal}", f"rounds to {goal}", "seconds"]


def comparison_table(lines: Sequence[Standing], target: float) -> Table:
    """A comparison for the terminal."""
    table = Table(title="Accuracy, and upload of a sampled client in units of the model's size d", title_justify="left")
    for k, heading in enumerate(_headings(target)):
        table.add_column(heading, justify="left" if k == 0 else "right")
    cheapest = min((line.upload_d_to_target for line in lines if line.upload_d_to_target is not None), default=None)
    for line in lines:
        best = cheapest is not None and line.upload_d_to_target == cheapest
        table.add_row(*_cells(line), style="bold" if best else None)
    return table


def comparison_markdown(lines: Sequence[Standing], target: float) -> str:
    """The same for a file, with the hyper-parameters."""
    rows = [[*_headings(target), "settings"], *([*_cells(line), f"`{line.settings}`"] for line in lines)]
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def run_table(summary: Mapping[str, Any], folder: Path) -> Table:
    """A single run for the terminal."""
    table = Table(title=f"{summary['algorithm']}: {summary['rounds']} rounds", show_header=False, title_justify="left")
    rows = {
        "accuracy": f"{percent(summary['final_accuracy'])} at the end, {percent(summary['best_accuracy'])} at best",
        "model": f"d = {summary['parameters']:,} coordinates",
        "upload of a client": f"{summary['upload_d'] / max(1, summary['rounds']):.3f} d a round, "
        f"{summary['upload_d']:.1f} d in all",
        "upload of all clients": f"{summary['upload_floats']:,} floats, {size(summary['upload_bytes'])}",
        "download of all clients": f"{summary['download_floats']:,} floats, {size(summary['download_bytes'])}",
        "time": f"{summary['seconds']:.1f} s, {summary['round_seconds_median'] or 0:.3f} s a round (median)",
        "weights": f"SHA-256 {summary['sha256'][:16]}…",
        "files": str(folder),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def percent(value: float | None) -> str:
    """As it stands in tables."""
    return "-" if value is None else f"{value:.1%}"


def size(count: float) -> str:
    """Bytes in a unit that suits them."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
