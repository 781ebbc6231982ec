"""The record of a round, which the log, the progress bar, the metrics and the reports read.

A field that is also a Prometheus metric has a `Metric` in its annotation. By default, the metric is named
`raybcgd_<group>_<field>`, and its help text is the first sentence of the field's docstring.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, ValidationError

from raybcgd.errors import ConfigError
from raybcgd.section import Section
from raybcgd.storage import append_line, write_atomic

SECONDS_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)


@dataclass(frozen=True)
class Metric:
    """How a field appears in Prometheus."""

    kind: Literal["gauge", "counter", "histogram"] = "gauge"
    by: str | None = None
    """The label for the keys of a mapping."""
    name: str | None = None
    """Default: <group>_<field>."""
    read: Callable[[Any], float | Mapping[str, float] | Sequence[float]] = lambda value: value
    """Convert the field's value to the metric's. Default: no change."""
    help: str | None = None
    """Default: the first sentence of the field's docstring."""


def block_name(k: int, blocks: int) -> str:
    """Return the name of block k. The last one is the shared block."""
    return "shared" if k == blocks - 1 else str(k)


def _by_block(values: Sequence[float | None]) -> dict[str, float]:
    numbers = [float("nan") if value is None else float(value) for value in values]
    return {block_name(k, len(values)): number for k, number in enumerate(numbers)}


GAUGE = Metric()
COUNTER = Metric("counter")
GAUGE_BY_BLOCK = Metric(by="block", read=_by_block)
COUNTER_BY_BLOCK = Metric("counter", by="block", read=_by_block)


@dataclass(slots=True)
class Participant:
    """A client that took part in a round. A dataclass, because a round with many clients creates many of them."""

    client: int
    block: int | None
    """The block that it uploaded in addition to the shared one. None for methods that upload everything."""
    seconds: float
    loss: float | None
    """Mean training loss over its local steps. None if it is not finite."""


class Dropped(Section):
    """A sampled client that failed or missed the deadline."""

    client: int
    block: int | None
    reason: str


def _by_reason(dropped: Sequence[Dropped]) -> dict[str, float]:
    late = sum(client.reason == "deadline" for client in dropped)
    return {"deadline": late, "error": len(dropped) - late}


class ClientQuality(Section):
    """The accuracy of the global model on each client's own training samples, summarised over the clients."""

    mean: float
    worst_tenth: float
    """Mean over the tenth of the clients with the lowest accuracy, at least one client."""
    deviation: float
    """Standard deviation over the clients."""


class Quality(Section):
    """The global model after the round. With data.evaluate_on = "validation", test data means validation data."""

    model_config = ConfigDict(allow_inf_nan=True)  # written to the log as null

    accuracy: Annotated[float | None, GAUGE] = None
    """Test accuracy, from 0 to 1. None if the round was not evaluated, or for regression."""
    accuracy_by_phase: Annotated[
        tuple[float, ...] | None,
        Metric(by="data_phase", read=lambda values: {str(k): value for k, value in enumerate(values)}),
    ] = None
    """Test accuracy on each phase of block-cyclic data; `accuracy` is their mean. None without phases."""
    loss: Annotated[float | None, GAUGE] = None
    """Mean test loss."""
    train_loss: Annotated[float | None, GAUGE] = None
    """Mean loss of the participants during local training. None without participants; null in the log if not finite."""
    clients: Annotated[
        ClientQuality | None, Metric(by="statistic", name="quality_client_accuracy", read=lambda found: dict(found))
    ] = None
    """Accuracy on the clients' own training samples: mean, worst tenth and standard deviation. None without
    `evaluation.clients`."""
    metrics: Annotated[dict[str, float] | None, Metric(by="metric")] = None
    """Values of `evaluation.metrics` on the test data, and "rmse" for regression. None without such metrics."""

    @property
    def evaluated(self) -> bool:
        """Whether the round was evaluated."""
        return self.accuracy is not None or self.loss is not None


class Traffic(Section):
    """Uploads and downloads of the clients."""

    upload_floats: Annotated[int, COUNTER]
    """Values uploaded by all clients, in any precision."""
    upload_bytes: Annotated[int, COUNTER]
    """Bytes uploaded by all clients."""
    upload_d: Annotated[float, COUNTER]
    """Mean upload per sampled client, in units of the model size d: bytes / (4 d)."""
    upload_d_total: float
    """Sum of `upload_d` over all rounds so far."""
    download_floats: Annotated[int, COUNTER]
    """Values downloaded by all clients."""
    download_bytes: Annotated[int, COUNTER]
    """Bytes downloaded by all clients."""
    compression_ratio: Annotated[float, GAUGE] = 1.0
    """Bytes of the uploads without a codec, divided by the bytes sent."""
    simulated_seconds: Annotated[float | None, GAUGE] = None
    """Simulated time of the round's uploads and downloads. None if `cohort.links` is not set."""


class Blocks(Section):
    """One value per block, the shared block last. Traffic includes floating-point buffers, such as the statistics of
    batch norm; displacements, movement and norms do not."""

    upload_floats: Annotated[tuple[int, ...], COUNTER_BY_BLOCK]
    """Values uploaded per block."""
    upload_bytes: Annotated[tuple[int, ...], COUNTER_BY_BLOCK]
    """Bytes uploaded per block. A codec's overhead is spread in proportion to the values."""
    download_floats: Annotated[tuple[int, ...], COUNTER_BY_BLOCK]
    """Values downloaded per block."""
    drift_diversity: Annotated[tuple[float | None, ...], GAUGE_BY_BLOCK]
    """Sum of the clients' squared displacements divided by the squared norm of their sum. None if nothing moved."""
    movement: Annotated[tuple[float, ...], GAUGE_BY_BLOCK]
    """Distance that the global model moved in the round."""
    momentum: Annotated[tuple[float, ...] | None, GAUGE_BY_BLOCK] = None
    """Norm of the server's momentum. None for methods without momentum."""
    control_variate: Annotated[tuple[float, ...] | None, GAUGE_BY_BLOCK] = None
    """Norm of the server's control variate. None for methods without one."""
    server_norms: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """Norms of all server vectors except the model, by field name."""
    edges: tuple[int, ...] | None = None
    """The start of each block, and the end of the last one. None: the division of the config."""


class Timing(Section):
    """The time that a round takes."""

    seconds: Annotated[
        float,
        Metric(name="timing_last_round_seconds", help="Time of the last round."),
        Metric("histogram", name="timing_round_seconds", read=lambda seconds: [seconds], help="Time per round."),
    ]
    """Time of the whole round."""
    stage_seconds: Annotated[dict[str, float], Metric(by="stage")]
    """Time per stage of the last round. The stages are plan, broadcast, train, aggregate, evaluate (waiting only) and
    checkpoint. `checkpoint` is that of the previous round: a round's record is written before its checkpoint."""
    finished_at: float | None = None
    """Unix time when the round was logged. Its evaluation overlaps the next round, so this can be a round later."""


class Hosts(Section):
    """The client hosts during the round."""

    device: str | None = None
    """The kind of device that trained the clients; several kinds are separated by commas. Different kinds of
    devices give results that differ in their last bits."""

    up: Annotated[int, GAUGE]
    """Hosts that are up."""
    pending: Annotated[int, GAUGE] = 0
    """Hosts that were requested and are not up yet."""
    queued_tasks: Annotated[int, GAUGE] = 0
    """Maximum number of client tasks waiting for a host at the same time."""
    retried_tasks: Annotated[int, COUNTER] = 0
    """Client tasks retried because their host was lost."""
    rehomed_clients: Annotated[int, COUNTER] = 0
    """Clients that moved to another host."""
    restarted: Annotated[int, COUNTER] = 0
    """Hosts started to replace lost ones."""
    state_memory_bytes: Annotated[int, GAUGE] = 0
    """Size of the client states in the memory of all hosts."""
    state_disk_bytes: Annotated[int, GAUGE] = 0
    """Size of the client state files, including old versions that a checkpoint may need."""
    object_store_bytes: Annotated[int | None, GAUGE] = None
    """Used memory of Ray's object store on all nodes. None without Ray."""
    object_store_capacity_bytes: Annotated[int | None, GAUGE] = None
    """Capacity of Ray's object store on all nodes."""
    device_memory_bytes: Annotated[int | None, GAUGE] = None
    """Sum of the hosts' peak accelerator memory. None on CPUs."""
    device_reserved_bytes: Annotated[int | None, GAUGE] = None
    """Sum of the accelerator memory that the hosts' processes reserved, at their peaks. None on CPUs."""


class LiveHosts(NamedTuple):
    """The client hosts at this moment, even while a round waits for hosts. The metrics export these numbers."""

    up: int
    pending: int
    restarted: int
    """Total since the coordinator started."""


class RoundRecord(Section):
    """All measurements of a round."""

    round: Annotated[int, Metric(help="Last finished round, counted from 0.")]
    lr: Annotated[float, GAUGE]
    """Local step size."""
    data_phase: int = 0
    """Phase of block-cyclic data; 0 without phases."""
    participants: Annotated[
        tuple[Participant, ...],
        Metric(read=len, help="Clients that took part in the last round."),
        Metric(
            "histogram",
            name="client_seconds",
            read=lambda clients: [client.seconds for client in clients],
            help="Time of a client's local training.",
        ),
    ]
    dropped: Annotated[tuple[Dropped, ...], Metric("counter", "reason", "dropped_clients", _by_reason)] = ()
    """Sampled clients that failed or missed the deadline."""
    quality: Quality
    traffic: Traffic
    blocks: Blocks
    timing: Timing
    hosts: Hosts


class RoundLog:
    """`rounds.jsonl`: one line per round, in order. A failed write leaves no part of a line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: RoundRecord) -> None:
        """Append a round."""
        append_line(self.path, (record.model_dump_json() + "\n").encode())

    def __iter__(self) -> Iterator[RoundRecord]:
        for number, line in enumerate(self.content().splitlines(), start=1):
            try:
                yield RoundRecord.model_validate_json(line)
            except ValidationError:
                where = f"{self.path}, line {number},"
                raise ConfigError(f"{where} is not a round record; restore it with `raybcgd resume`") from None

    def content(self) -> bytes:
        """Return the complete lines of the log. A killed process can leave an incomplete last line."""
        content = self.path.read_bytes() if self.path.is_file() else b""
        return content[: content.rfind(b"\n") + 1]

    def restore(self, content: bytes) -> None:
        """Replace the log with that of a checkpoint. Later rounds will be repeated."""
        write_atomic(self.path, content)
