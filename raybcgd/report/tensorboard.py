"""Runs as TensorBoard events. Curves are named after the fields of the round record."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raybcgd.errors import ConfigError
from raybcgd.record.rounds import RoundRecord, block_name
from raybcgd.report.runs import Run


def write_events(runs: Sequence[Run], folder: Path) -> None:
    """Write one folder of events per run. View them with `tensorboard --logdir FOLDER`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("--tensorboard needs TensorBoard; pip install raybcgd[tensorboard]") from None
    try:
        for run in runs:
            with SummaryWriter(str(folder / run.label.replace("/", "-"))) as writer:
                for record in run.records:
                    for name, value in scalars(record).items():
                        writer.add_scalar(name, value, record.round, record.timing.finished_at)
    except OSError as error:
        raise ConfigError(f"--tensorboard {folder} is not writable ({error.strerror}); choose another folder") from None


def scalars(record: RoundRecord) -> dict[str, float]:
    """Return the values of a round by curve, such as quality/accuracy or blocks/movement/shared."""
    groups = record.model_dump(include={"quality", "traffic", "blocks", "timing", "hosts"})
    groups["clients"] = {"participants": len(record.participants), "dropped": len(record.dropped)}
    groups["lr"] = record.lr
    del groups["blocks"]["edges"], groups["timing"]["finished_at"]
    return dict(_curves(groups))


def _curves(value: Any, *path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _curves(part, *path, key)
    elif isinstance(value, str):  # such as the kind of device: not a curve
        return
    elif isinstance(value, Sequence):
        for k, part in enumerate(value):
            yield from _curves(part, *path, block_name(k, len(value)) if path[0] == "blocks" else str(k))
    elif value is not None:
        yield "/".join(path), float(value)
