"""One record a round, from which the log file, the progress bar, the metrics and the reports all read."""

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ConfigDict, Field, ValidationError

from raybcgd.errors import ConfigError
from raybcgd.section import Section


class Participant(Section):
    """A client that took part in a round."""

    client: int
    block: int | None
    """The block that it uploaded beside the shared one; None for methods that upload everything."""
    seconds: float
    loss: float | None
    """Mean training loss over its local steps; None where that is not a number."""


class Dropped(Section):
    """A client that was sampled and whose upload did not count."""

    client: int
    block: int | None
    reason: str


class RoundRecord(Section):
    """Everything about a round."""

    model_config = ConfigDict(allow_inf_nan=True)  # a loss may be; in the log it is null then

    round: int
    phase: int = 0
    """The phase of block-cyclic data that was on; 0 where there are none."""
    accuracy: float | None
    """On the test data, after the round; None where the round was not evaluated."""
    accuracy_by_phase: tuple[float, ...] | None = None
    """On the test data of every phase of block-cyclic data; `accuracy` is their mean. None where there are none."""
    loss: float | None
    train_loss: float | None
    """Mean over the participants of their loss during local training; None where nobody took part. A loss
    that is not finite is null in the log."""
    lr: float
    participants: tuple[Participant, ...]
    dropped: tuple[Dropped, ...] = ()
    upload_floats: int
    upload_bytes: int
    upload_d: float
    """Mean upload of a sampled client, in units of d."""
    upload_d_total: float
    """The same, summed over all rounds so far."""
    upload_floats_by_block: tuple[int, ...]
    """The shared block last."""
    upload_bytes_by_block: tuple[int, ...] = ()
    """The same of the bytes; what a codec adds to the values is shared out in proportion to them."""
    compression_ratio: float = 1.0
    """Bytes that the declared uploads would take uncoded, over the bytes that were sent."""
    download_floats: int
    download_bytes: int
    download_floats_by_block: tuple[int, ...] = ()
    drift_diversity: tuple[float | None, ...]
    """For every block, the shared one last."""
    movement: tuple[float, ...] = ()
    """How far the global model moved: a Euclidean norm for every block, the shared one last."""
    server_norms: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """The same of the server's other vectors by their letter: momentum (v, m), control variates (c, h) and so on."""
    block_edges: tuple[int, ...] | None = None
    """Where blocks begin and the last one ends; None where they are as the config divides."""
    simulated_seconds: float | None = None
    """How long the round's traffic would take over the clients' links; None where these are not known."""
    seconds: float
    """The whole round."""
    phase_seconds: dict[str, float]
    """plan, broadcast, train, reduce, evaluate (as far as anybody waited for it) and checkpoint (of the one that was
    saved since the record before: a checkpoint holds its own round's record, so that cannot hold its time)."""
    finished_at: float | None = None
    """Unix time."""
    hosts: int
    hosts_pending: int = 0
    """Hosts that were asked for and are not up yet."""
    queued: int = 0
    """The most jobs that waited for a host at once."""
    retried: int = 0
    """Jobs done again because their host was lost."""
    rehomed: int = 0
    """Clients that moved to another host."""
    restarted: int = 0
    """Hosts started in place of lost ones."""
    state_memory_bytes: int = 0
    """Client states in the memory of all hosts."""
    state_disk_bytes: int = 0
    """Client states in files, superseded ones that a checkpoint may still need among them."""
    object_store_bytes: int | None = None
    """In use on all nodes; None where there is no object store."""
    object_store_capacity_bytes: int | None = None
    device_memory_bytes: int | None = None
    """The most that the hosts have held on their accelerators, summed; None where there are none."""


class RoundLog:
    """`rounds.jsonl`: every round once, in order, each line written whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: RoundRecord) -> None:
        """Add a round."""
        line = (record.model_dump_json() + "\n").encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def __iter__(self) -> Iterator[RoundRecord]:
        if self.path.exists():
            for number, line in enumerate(self.path.read_bytes().splitlines(), start=1):
                try:
                    yield RoundRecord.model_validate_json(line)
                except ValidationError:
                    raise ConfigError(
                        f"{self.path}, line {number}, is not the record of a round; restore the file, or go on with "
                        "`raybcgd resume`, which takes it from the last checkpoint"
                    ) from None

    def content(self) -> bytes:
        """The log as it stands, for a checkpoint."""
        return self.path.read_bytes() if self.path.exists() else b""

    def restore(self, content: bytes) -> None:
        """Go back to the log of a checkpoint: later rounds will be done again."""
        temporary = self.path.with_suffix(".part")
        temporary.write_bytes(content)
        temporary.replace(self.path)
