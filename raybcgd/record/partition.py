"""The labels per client, stored with a run so that its report does not need the data."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from raybcgd.data.dataset import Dataset
from raybcgd.data.inspect import label_counts, shown_clients
from raybcgd.data.partition import Partition
from raybcgd.errors import ConfigError
from raybcgd.section import Section


class PartitionRecord(Section):
    """`partition.json`: the label counts of some evenly spaced clients, per data phase."""

    dataset: str
    clients: int
    """Total number of clients."""
    shown: tuple[int, ...]
    """The clients whose labels are counted."""
    counts: tuple[tuple[tuple[int, ...], ...], ...]
    """Samples by data phase, client and label."""
    label: str = "label"
    """What is counted: the labels, or ranges of the targets of a regression."""
    names: tuple[str, ...] | None = None
    """The names of all clients, by number. None: the data set has no clients of its own."""


def partition_record(dataset: Dataset, partitions: Sequence[Partition]) -> PartitionRecord:
    """Return the label counts of the clients that a report shows."""
    clients = len(partitions[0])
    shown = shown_clients(clients)
    counts = [label_counts(dataset.labels, dataset.label_count, part)[shown].tolist() for part in partitions]
    return PartitionRecord(
        dataset=dataset.name,
        clients=clients,
        shown=tuple(shown.tolist()),
        counts=counts,
        label="decile of the targets" if dataset.regression else "label",
        names=None if dataset.clients is None or len(dataset.clients) != clients else dataset.clients.names,
    )


def read_partition(path: Path) -> PartitionRecord | None:
    """Read a run's `partition.json`. Return None if there is no such file."""
    try:
        return PartitionRecord.model_validate_json(path.read_bytes()) if path.exists() else None
    except ValidationError:
        raise ConfigError(f"{path} is not a partition record; delete it to make a report without it") from None
