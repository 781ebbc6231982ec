"""The rounds of a run as one flat table, for data frames and for export."""

from collections.abc import Iterable
from typing import Any

from raybcgd.record.rounds import RoundRecord


def round_rows(records: Iterable[RoundRecord]) -> list[dict[str, Any]]:
    """Return one flat row per round. Lists per block, phase or client are left out; participants are counted."""
    return [_row(record) for record in records]


def _row(record: RoundRecord) -> dict[str, Any]:
    quality = record.quality
    row: dict[str, Any] = {
        "round": record.round + 1,
        "accuracy": quality.accuracy,
        "loss": quality.loss,
        "train_loss": quality.train_loss,
        **{f"clients_{name}": value for name, value in (quality.clients or ())},
        **{f"metric_{name}": value for name, value in (quality.metrics or {}).items()},
        "lr": record.lr,
        "data_phase": record.data_phase,
        "participants": len(record.participants),
        "dropped": len(record.dropped),
    }
    row |= record.traffic.model_dump()
    row |= {"seconds": record.timing.seconds, "finished_at": record.timing.finished_at}
    row |= {f"{stage}_seconds": seconds for stage, seconds in record.timing.stage_seconds.items()}
    return row
