"""Runs as TensorBoard event files."""

from collections.abc import Sequence
from pathlib import Path

from raybcgd.errors import ConfigError
from raybcgd.record.rounds import RoundRecord
from raybcgd.report.runs import Run


def write_events(runs: Sequence[Run], folder: Path) -> None:
    """Write a folder of events a run; look at them with `tensorboard --logdir FOLDER`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("--tensorboard needs TensorBoard; pip install raybcgd[tensorboard]") from None
    for run in runs:
        try:
            writer = SummaryWriter(str(folder / run.label.replace("/", "-")))
        except OSError as error:
            raise ConfigError(f"--tensorboard {folder}: cannot write there ({error.strerror}); give a folder") from None
        for record in run.records:
            for name, value in scalars(record).items():
                writer.add_scalar(name, value, record.round, record.finished_at)
        writer.close()


def scalars(record: RoundRecord) -> dict[str, float]:
    """What is drawn of a round, by the name of its curve."""
    curves: dict[str, float | None] = {
        "quality/accuracy": record.accuracy,
        "quality/loss": record.loss,
        "quality/train_loss": record.train_loss,
        "communication/upload_d": record.upload_d_total,
        "communication/upload_floats": record.upload_floats,
        "communication/upload_bytes": record.upload_bytes,
        "communication/download_bytes": record.download_bytes,
        "communication/compression_ratio": record.compression_ratio,
        "time/round": record.seconds,
        **{f"time/{phase}": seconds for phase, seconds in record.phase_seconds.items()},
        "cluster/hosts": record.hosts,
        "cluster/participants": len(record.participants),
        "cluster/dropped": len(record.dropped),
        **_by_block("drift", record.drift_diversity),
        **_by_block("movement", record.movement),
    }
    for letter, norms in record.server_norms.items():
        curves.update(_by_block(f"norm_{letter}", norms))
    return {name: float(value) for name, value in curves.items() if value is not None}


def _by_block(name: str, values: Sequence[float | None]) -> dict[str, float | None]:
    last = len(values) - 1
    return {f"{name}/{'shared' if k == last else k}": value for k, value in enumerate(values)}
