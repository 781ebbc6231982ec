"""Runs as TensorBoard events. Curves are named like the fields of the round record."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raybcgd.errors import ConfigError
from raybcgd.record.rounds import RoundRecord
from raybcgd.report.figures import block_name
from raybcgd.report.runs import Run

_GROUPS = ("quality", "traffic", "blocks", "timing", "hosts")
_NO_CURVE = ("edges", "finished_at")


def write_events(runs: Sequence[Run], folder: Path) -> None:
    """Write one folder of events per run; view them with `tensorboard --logdir FOLDER`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("--tensorboard needs TensorBoard; pip install raybcgd[tensorboard]") from None
    for run in runs:
        try:
            writer = SummaryWriter(str(folder / run.label.replace("/", "-")))
        except OSError as error:
            raise ConfigError(f"--tensorboard {folder} is not writable ({error.strerror}); choose another") from None
        for record in run.records:
            for name, value in scalars(record).items():
                writer.add_scalar(name, value, record.round, record.timing.finished_at)
        writer.close()


def scalars(record: RoundRecord) -> dict[str, float]:
    """Return the values of a round by curve, such as quality/accuracy or blocks/movement/shared."""
    clients = {"clients/participants": len(record.participants), "clients/dropped": len(record.dropped)}
    curves = {**clients, "quality/lr": record.lr}
    for group in _GROUPS:
        for name, value in getattr(record, group):
            if name not in _NO_CURVE:
                curves.update(_curves(f"{group}/{name}", value))
    return curves


def _curves(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _curves(f"{name}/{key}", part)
    elif isinstance(value, Sequence):
        for k, part in enumerate(value):
            yield from _curves(f"{name}/{block_name(k, len(value)) if name.startswith('blocks/') else k}", part)
    elif value is not None:
        yield name, float(value)
