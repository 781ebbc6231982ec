"""A run's rounds as Prometheus metrics: one table says what each metric is and how it is read from a round's record."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pydantic import Field

from raybcgd.record.endpoint import Endpoint, discovery_file, take_back
from raybcgd.record.rounds import RoundRecord
from raybcgd.section import Section

RUN_LABELS = ("run", "algorithm", "dataset")
"""On every metric, so that many runs can be told apart wherever they are scraped from."""


class MetricsConfig(Section):
    """`[metrics]`: what Prometheus sees of a run."""

    enabled: bool = True
    """Whether metrics are served at all."""
    host: str = "127.0.0.1"
    """The address to listen at; 0.0.0.0 where Prometheus runs on another machine."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0 takes a free one, which Prometheus finds by the discovery folder."""
    discovery: str | None = None
    """The folder in which Prometheus looks for runs; `raybcgd-discovery` in the system's folder for temporary files
    unless given, where the shipped prometheus.yml looks too."""
    linger_seconds: Annotated[float, Field(ge=0)] = 15.0
    """Where Prometheus has been reading, wait at most so long after the last round until it has read that too."""
    target: Annotated[float, Field(gt=0, le=1)] = 0.9
    """The accuracy to which uploads are counted; a comparison sets its own."""


class RunPlan(NamedTuple):
    """What is known of a run before its first round."""

    rounds: int
    parameters: int
    saves: bool
    """Whether it makes checkpoints."""


class RunLabels(NamedTuple):
    """Which run a metric is of."""

    run: str
    algorithm: str
    dataset: str


def run_name(folder: Path) -> str:
    """A run is called like its folder, within the folder of its comparison or sweep if it is of one."""
    parent, name = folder.absolute().parts[-2:]
    return name if parent == "runs" else f"{parent}/{name}"


Values = float | Mapping[str, float] | Sequence[float] | None
"""One value; one for every value of the metric's own label; many observations; or nothing new."""


class Metric(NamedTuple):
    """A line of the table."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    read: Callable[[RoundRecord], Values] = lambda _: None
    by: tuple[str, ...] = ()
    """The label that the metric has beside those of the run."""
    buckets: tuple[float, ...] = ()


def _by_block(values: Sequence[float | None]) -> dict[str, float]:
    names = [*map(str, range(len(values) - 1)), "shared"]
    return {name: float("nan") if v is None else float(v) for name, v in zip(names, values, strict=bool(values))}


def _dropped(record: RoundRecord) -> dict[str, float]:
    late = sum(client.reason == "deadline" for client in record.dropped)
    return {"deadline": late, "error": len(record.dropped) - late}


def _norms(*letters: str) -> Callable[[RoundRecord], dict[str, float]]:
    """The norms of the first of these vectors that the server has."""
    return lambda r: next((_by_block(r.server_norms[name]) for name in letters if name in r.server_norms), {})


_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
_BLOCK = ("block",)

FROM_RECORD = (
    Metric("round", "gauge", "The last round that is done, counted from 0.", lambda r: r.round),
    Metric("accuracy_ratio", "gauge", "Accuracy on the test data, from 0 to 1.", lambda r: r.accuracy),
    Metric("loss", "gauge", "Loss on the test data.", lambda r: r.loss),
    Metric("train_loss", "gauge", "Mean loss of the clients during local training.", lambda r: r.train_loss),
    Metric(
        "phase_accuracy_ratio",
        "gauge",
        "Accuracy on the test data of each phase of block-cyclic data.",
        lambda r: None if r.accuracy_by_phase is None else {str(k): a for k, a in enumerate(r.accuracy_by_phase)},
        ("data_phase",),
    ),
    Metric("learning_rate", "gauge", "Step size of local training.", lambda r: r.lr),
    Metric("last_round_seconds", "gauge", "Time of the last round.", lambda r: r.seconds),
    Metric("round_seconds", "histogram", "Time of a round.", lambda r: [r.seconds], buckets=_SECONDS),
    Metric("phase_seconds", "gauge", "Time of the last round by its phase.", lambda r: r.phase_seconds, ("phase",)),
    Metric(
        "client_seconds",
        "histogram",
        "Time of a client's local training.",
        lambda r: [p.seconds for p in r.participants],
        buckets=_SECONDS,
    ),
    Metric("simulated_seconds", "gauge", "Time of a round's traffic on the links.", lambda r: r.simulated_seconds),
    Metric("uploaded_floats_total", "counter", "Values that clients have uploaded.", lambda r: r.upload_floats),
    Metric("uploaded_bytes_total", "counter", "Bytes that clients have uploaded.", lambda r: r.upload_bytes),
    Metric(
        "uploaded_model_sizes_total", "counter", "Mean upload of a sampled client, in units of d.", lambda r: r.upload_d
    ),
    Metric(
        "block_uploaded_floats_total",
        "counter",
        "Values that clients have uploaded, by block.",
        lambda r: _by_block(r.upload_floats_by_block),
        _BLOCK,
    ),
    Metric(
        "block_uploaded_bytes_total",
        "counter",
        "Bytes that clients have uploaded, by block.",
        lambda r: _by_block(r.upload_bytes_by_block),
        _BLOCK,
    ),
    Metric("downloaded_floats_total", "counter", "Values that clients have downloaded.", lambda r: r.download_floats),
    Metric("downloaded_bytes_total", "counter", "Bytes that clients have downloaded.", lambda r: r.download_bytes),
    Metric(
        "block_downloaded_floats_total",
        "counter",
        "Values that clients have downloaded, by block.",
        lambda r: _by_block(r.download_floats_by_block),
        _BLOCK,
    ),
    Metric(
        "compression_ratio",
        "gauge",
        "Bytes of the last round's uploads without a codec, over those sent.",
        lambda r: r.compression_ratio,
    ),
    Metric("participants", "gauge", "Clients that took part in the last round.", lambda r: len(r.participants)),
    Metric("dropped_clients_total", "counter", "Sampled clients whose upload did not count.", _dropped, ("reason",)),
    Metric("retried_jobs_total", "counter", "Jobs done again because their host was lost.", lambda r: r.retried),
    Metric("rehomed_clients_total", "counter", "Moves of a client to another host.", lambda r: r.rehomed),
    Metric("restarted_hosts_total", "counter", "Hosts started in place of lost ones.", lambda r: r.restarted),
    Metric("hosts", "gauge", "Hosts that are up.", lambda r: r.hosts),
    Metric("pending_hosts", "gauge", "Hosts that were asked for and are not up.", lambda r: r.hosts_pending),
    Metric("queued_jobs", "gauge", "Most jobs that waited for a host at once.", lambda r: r.queued),
    Metric("object_store_bytes", "gauge", "Ray's object store in use, all nodes.", lambda r: r.object_store_bytes),
    Metric(
        "object_store_capacity_bytes",
        "gauge",
        "Ray's object store in all, all nodes.",
        lambda r: r.object_store_capacity_bytes,
    ),
    Metric("state_memory_bytes", "gauge", "Client states in the hosts' memory.", lambda r: r.state_memory_bytes),
    Metric("state_disk_bytes", "gauge", "Client states in files.", lambda r: r.state_disk_bytes),
    Metric("device_memory_bytes", "gauge", "Most memory held on accelerators.", lambda r: r.device_memory_bytes),
    Metric(
        "drift_diversity",
        "gauge",
        "How unlike the clients' displacements are: sum of squares over square of the sum.",
        lambda r: _by_block(r.drift_diversity),
        _BLOCK,
    ),
    Metric(
        "movement_norm",
        "gauge",
        "How far the global model moved in a round.",
        lambda r: _by_block(r.movement),
        _BLOCK,
    ),
    Metric("momentum_norm", "gauge", "Norm of the server's momentum.", _norms("v", "m"), _BLOCK),
    Metric("control_variate_norm", "gauge", "Norm of the server's control variate.", _norms("c", "h"), _BLOCK),
)
"""What is read from a record."""

OWN = (
    Metric("planned_rounds", "gauge", "Rounds that the run is to have."),
    Metric("parameters", "gauge", "d, the coordinates of the model."),
    Metric("start_timestamp_seconds", "gauge", "When the run began or was resumed."),
    Metric("round_timestamp_seconds", "gauge", "When the last round was done; before the first one, the start."),
    Metric("checkpoint_timestamp_seconds", "gauge", "When the last checkpoint was saved; before that, the start."),
    Metric("target_accuracy_ratio", "gauge", "The accuracy to which uploads are counted."),
    Metric("target_rounds", "gauge", "Rounds until the target accuracy was first reached."),
    Metric("target_model_sizes", "gauge", "Mean upload of a sampled client until then, in units of d."),
    Metric("exporter_seconds_total", "counter", "Time spent on these metrics, mostly when they are read."),
)
"""What a record does not hold."""

METRICS = (*FROM_RECORD, *OWN)


class _LazyRegistry(CollectorRegistry):
    """A registry that is brought up to date when somebody reads it."""

    def __init__(self, update: Callable[[], None]) -> None:
        super().__init__()
        self._update = update

    def collect(self) -> Iterator[Any]:
        self._update()
        yield from super().collect()

    def restricted_registry(self, names: Iterable[str]) -> Any:
        self._update()
        return super().restricted_registry(names)


_MOST_WAITING = 256
"""Rounds that wait for a reader before they are turned into metrics without one."""


class Exporter:
    """Turns records into metrics of a registry of its own.

    A round only leaves its record here. Whoever reads the metrics has them made first, in the reader's thread.
    """

    def __init__(self, labels: RunLabels, config: MetricsConfig, plan: RunPlan) -> None:
        self.registry = _LazyRegistry(self._catch_up)
        self._waiting: deque[tuple[RoundRecord, float | None]] = deque()
        self._one_reader = Lock()
        self._labels, self._target, self._reached = labels, config.target, False
        self._instruments = {metric.name: self._instrument(metric) for metric in METRICS}
        self._children: dict[tuple[str, ...], Any] = {}
        now = time.time()
        self._child("planned_rounds").set(plan.rounds)
        self._child("parameters").set(plan.parameters)
        self._child("target_accuracy_ratio").set(config.target)
        for name in ("start", "round", *(["checkpoint"] if plan.saves else [])):
            self._child(f"{name}_timestamp_seconds").set(now)
        for metric in METRICS:
            if metric.kind == "counter" and not metric.by:
                self._child(metric.name)  # seen at 0, so that Prometheus knows by how much it has grown

    def _instrument(self, metric: Metric) -> Any:
        kind = {"gauge": Gauge, "counter": Counter, "histogram": Histogram}[metric.kind]
        more = {"buckets": metric.buckets} if metric.buckets else {}
        return kind(metric.name, metric.help, (*RUN_LABELS, *metric.by), "raybcgd", registry=self.registry, **more)

    def _child(self, name: str, *values: str) -> Any:
        key = (name, *values)
        if key not in self._children:  # looking it up again is ten times cheaper
            self._children[key] = self._instruments[name].labels(*self._labels, *values)
        return self._children[key]

    def take_up(self, records: Iterable[RoundRecord]) -> None:
        """Start from the rounds that were done before this process was."""
        for record in records:
            self.observe(record)
        self._catch_up()

    def observe(self, record: RoundRecord, checkpoint_at: float | None = None) -> None:
        """A round is done; the last checkpoint was saved at that (Unix) time."""
        self._waiting.append((record, checkpoint_at))
        if len(self._waiting) >= _MOST_WAITING:
            self._catch_up()

    def _catch_up(self) -> None:
        """Show the rounds that wait: of gauges the last value, of everything else all of them."""
        began = time.perf_counter()
        with self._one_reader:
            news = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if not news:
                return
            records = [record for record, _ in news]
            for metric in FROM_RECORD:
                self._show(metric, [values for record in records if (values := metric.read(record)) is not None])
            self._stamp("round", [record.finished_at for record in records])
            self._stamp("checkpoint", [saved_at for _, saved_at in news])
            self._look_for_target(records)
            self._child("exporter_seconds_total").inc(time.perf_counter() - began)

    def _stamp(self, name: str, times: Sequence[float | None]) -> None:
        known = [at for at in times if at is not None]
        if known:
            self._child(f"{name}_timestamp_seconds").set(known[-1])

    def _look_for_target(self, records: Iterable[RoundRecord]) -> None:
        for record in () if self._reached else records:
            if record.accuracy is not None and record.accuracy >= self._target:
                self._reached = True
                self._child("target_rounds").set(record.round + 1)
                self._child("target_model_sizes").set(record.upload_d_total)
                return

    def _show(self, metric: Metric, values: Sequence[Any]) -> None:
        """What one metric has been in some rounds."""
        if not values:
            return
        if metric.kind == "histogram":
            child = self._child(metric.name)
            for value in chain.from_iterable(values):
                child.observe(value)
            return
        for key, value in (_named(values[-1]) if metric.kind == "gauge" else _sums(values)).items():
            child = self._child(metric.name, *key)
            child.set(value) if metric.kind == "gauge" else child.inc(value)


def _named(values: float | Mapping[str, float]) -> dict[tuple[str, ...], float]:
    """A metric's values by the labels that it has beside the run's."""
    return {(key,): value for key, value in values.items()} if isinstance(values, Mapping) else {(): values}


def _sums(values: Sequence[float | Mapping[str, float]]) -> dict[tuple[str, ...], float]:
    total: dict[tuple[str, ...], float] = {}
    for one in values:
        for key, value in _named(one).items():
            total[key] = total.get(key, 0.0) + value
    return total


class Silent:
    """In place of an exporter where metrics are turned off."""

    def take_up(self, records: Iterable[RoundRecord]) -> None:
        """Nothing."""

    def observe(self, record: RoundRecord, checkpoint_at: float | None = None) -> None:
        """Nothing."""


@contextmanager
def exporting(config: MetricsConfig, labels: RunLabels, plan: RunPlan) -> Iterator[Exporter | Silent]:
    """An exporter with an endpoint that Prometheus finds, for as long as the block lasts."""
    if not config.enabled:
        yield Silent()
        return
    exporter = Exporter(labels, config, plan)
    file = discovery_file(config.discovery, labels.run)
    with Endpoint(exporter.registry, config.host, config.port, file) as endpoint:
        yield exporter
        endpoint.linger(config.linger_seconds)


def withdraw(config: MetricsConfig, folder: Path) -> None:
    """Take back the announcement of a run that cannot do so itself."""
    if config.enabled:
        take_back(discovery_file(config.discovery, run_name(folder)))
