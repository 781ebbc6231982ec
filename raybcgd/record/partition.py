"""Who has which labels, kept with a run so that its report needs no data."""

from pathlib import Path

import numpy as np
from pydantic import ValidationError

from raybcgd.data.inspect import MOST_CLIENTS_DRAWN, label_counts
from raybcgd.errors import ConfigError
from raybcgd.problem import Data
from raybcgd.section import Section


class PartitionRecord(Section):
    """`partition.json`: the label counts of some clients, evenly spaced, in every phase of the data."""

    dataset: str
    clients: int
    """In all."""
    shown: tuple[int, ...]
    """The clients that are counted here."""
    counts: tuple[tuple[tuple[int, ...], ...], ...]
    """Samples by phase, client and label."""


def partition_record(data: Data) -> PartitionRecord:
    """The part of a partition that can be drawn."""
    clients = len(data.partitions[0])
    spaced = np.linspace(0, clients - 1, min(clients, MOST_CLIENTS_DRAWN)).round().astype(np.int64)
    shown = np.unique(spaced)
    targets, classes = data.dataset.train.targets, data.dataset.classes
    counts = [label_counts(targets, classes, part)[shown].tolist() for part in data.partitions]
    return PartitionRecord(dataset=data.dataset.name, clients=clients, shown=tuple(shown.tolist()), counts=counts)


def read_partition(path: Path) -> PartitionRecord | None:
    """That of a run; None where there is none, as in runs of earlier versions."""
    try:
        return PartitionRecord.model_validate_json(path.read_bytes()) if path.exists() else None
    except ValidationError:
        raise ConfigError(f"{path} is not the record of a partition; remove it, and the report does without") from None
