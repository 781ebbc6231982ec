"""Export rounds as Prometheus metrics, which the annotations of the round record declare."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from threading import Lock
from typing import Any, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from raybcgd.record.discovery import discovery_file, remove_discovery_file
from raybcgd.record.endpoint import Endpoint
from raybcgd.record.rounds import SECONDS_BUCKETS, LiveHosts, Metric, RoundRecord
from raybcgd.record.settings import MetricsConfig
from raybcgd.record.summary import reaches
from raybcgd.section import Section
from raybcgd.storage import RunFolder

RUN_LABELS = ("run", "algorithm", "dataset")
"""Labels of every metric, to tell runs apart."""
_MAX_WAITING = 256
"""If this many records are queued, they are converted without waiting for a scrape."""


class RunInfo(NamedTuple):
    """Facts about a run that are known before its first round."""

    run: str
    algorithm: str
    dataset: str
    rounds: int
    parameters: int
    saves: bool
    """Whether it writes checkpoints."""
    folder: str = ""
    """Path of the run folder, which tells runs of the same name apart."""


class Exported(NamedTuple):
    """An exported metric. The name does not include the prefix `raybcgd_`."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    by: tuple[str, ...] = ()
    """The label in addition to those of the run."""
    read: Callable[[RoundRecord], Any] = lambda _: None
    """Return the record's value, its values by label, a list of observations, or None."""


def _declared(section: type[Section], group: str = "") -> Iterator[Exported]:
    """Yield the metrics that a record's annotations declare."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _declared(field.annotation, f"{name}.")
        for metric in field.metadata:
            if isinstance(metric, Metric):
                yield _exported(group + name, metric, field.description or "")


def _exported(path: str, metric: Metric, description: str) -> Exported:
    name = (metric.name or path.replace(".", "_")) + ("_total" if metric.kind == "counter" else "")
    text = metric.help or description.split(". ")[0].rstrip(".") + "."
    field = attrgetter(path)

    def read(record: RoundRecord) -> Any:
        value = field(record)
        return None if value is None else metric.read(value)

    return Exported(name, metric.kind, text, () if metric.by is None else (metric.by,), read)


FROM_RECORD = tuple(_declared(RoundRecord))
OWN = (
    Exported("planned_rounds", "gauge", "Number of rounds that the config allows."),
    Exported("parameters", "gauge", "d, the number of coordinates of the model."),
    Exported("start_timestamp_seconds", "gauge", "Time when the run started or resumed."),
    Exported(
        "round_timestamp_seconds",
        "gauge",
        "Time of the last finished round, or of the start if there is none.",
        read=attrgetter("timing.finished_at"),
    ),
    Exported("checkpoint_timestamp_seconds", "gauge", "Time of the last checkpoint, or of the start if there is none."),
    Exported("target_accuracy", "gauge", "Target accuracy."),
    Exported("target_rounds", "gauge", "Rounds until the target accuracy was first reached."),
    Exported("target_upload_d", "gauge", "Mean upload per sampled client until the target was reached, in units of d."),
    Exported("exporter_seconds_total", "counter", "Time spent on exporting metrics, mostly during scrapes."),
)
"""Metrics that no annotation declares."""
METRICS = (*FROM_RECORD, *OWN)
_LIVE = tuple(f"hosts_{name}" for name in ("up", "pending", "restarted_total"))
"""Metrics that a scrape reads from the pool, because a round that is waiting for hosts has no record yet."""
_UPDATE: dict[str, Any] = {"gauge": Gauge.set, "counter": Counter.inc, "histogram": Histogram.observe}


class _LazyRegistry(CollectorRegistry):
    """A registry that is updated when it is read."""

    def __init__(self, update: Callable[[], None]) -> None:
        super().__init__()
        self._update = update

    def collect(self) -> Iterator[Any]:
        self._update()
        yield from super().collect()

    def restricted_registry(self, names: Iterable[str]) -> Any:
        self._update()
        return super().restricted_registry(names)


class Exporter:
    """Converts records to metrics.

    A round only queues its record. A scrape converts the queued records in its own thread, and reads the number of
    hosts from `live`.
    """

    def __init__(self, info: RunInfo, config: MetricsConfig, live: Callable[[], LiveHosts] | None = None) -> None:
        self._live, self._restarted = live, 0
        self.registry = _LazyRegistry(self._catch_up)
        self._waiting: deque[tuple[RoundRecord, float | None]] = deque()
        self._one_reader = Lock()
        self._labels, self._target, self._reached = info[:3], config.target, False
        self._instruments = {metric.name: self._instrument(metric) for metric in METRICS}
        self._children: dict[tuple[str, ...], Any] = {}
        now = time.time()
        self._child("planned_rounds").set(info.rounds)
        self._child("parameters").set(info.parameters)
        self._child("target_accuracy").set(config.target)
        for name in ("start", "round", *(["checkpoint"] if info.saves else [])):
            self._child(f"{name}_timestamp_seconds").set(now)
        for metric in METRICS:
            if metric.kind == "counter" and not metric.by:
                self._child(metric.name)  # exported as 0, so that Prometheus sees the first increase

    def _instrument(self, metric: Exported) -> Any:
        kind = {"gauge": Gauge, "counter": Counter, "histogram": Histogram}[metric.kind]
        more = {"buckets": SECONDS_BUCKETS} if metric.kind == "histogram" else {}
        return kind(metric.name, metric.help, (*RUN_LABELS, *metric.by), "raybcgd", registry=self.registry, **more)

    def _child(self, name: str, *values: str) -> Any:
        key = (name, *values)
        if key not in self._children:  # a lookup here is ten times faster than `labels`
            self._children[key] = self._instruments[name].labels(*self._labels, *values)
        return self._children[key]

    def replay(self, records: Iterable[RoundRecord]) -> None:
        """Export the rounds that finished before a resume."""
        live, self._live = self._live, None
        for record in records:
            self.observe(record)
        self._catch_up()
        self._live = live

    def observe(self, record: RoundRecord, checkpoint_at: float | None = None) -> None:
        """Queue a finished round, with the Unix time of the last checkpoint."""
        self._waiting.append((record, checkpoint_at))
        if len(self._waiting) >= _MAX_WAITING:
            self._catch_up()

    def _catch_up(self) -> None:
        """Export the queued rounds: the last value of each gauge, all values of counters and histograms."""
        began = time.perf_counter()
        with self._one_reader:
            if self._live is not None:
                self._export_live(self._live())
            queued = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if queued:
                self._export_rounds(queued)
            self._child("exporter_seconds_total").inc(time.perf_counter() - began)

    def _export_rounds(self, queued: Sequence[tuple[RoundRecord, float | None]]) -> None:
        records = [record for record, _ in queued]
        for metric in METRICS:
            if self._live is None or metric.name not in _LIVE:
                self._export(metric, [values for record in records if (values := metric.read(record)) is not None])
        for _, checkpoint_at in queued:
            if checkpoint_at is not None:
                self._child("checkpoint_timestamp_seconds").set(checkpoint_at)
        reached = None if self._reached else reaches(records, self._target)
        if reached is not None:
            self._reached = True
            self._child("target_rounds").set(reached.round + 1)
            self._child("target_upload_d").set(reached.traffic.upload_d_total)

    def release(self) -> None:
        """Drop the reference to the pool, to free its device memory for the next run of this process."""
        with self._one_reader:
            self._live = None

    def _export_live(self, hosts: LiveHosts) -> None:
        up, pending, restarted = map(self._child, _LIVE)
        up.set(hosts.up)
        pending.set(hosts.pending)
        restarted.inc(hosts.restarted - self._restarted)
        self._restarted = hosts.restarted

    def _export(self, metric: Exported, rounds: Sequence[Any]) -> None:
        """Export the values of one metric over several rounds."""
        update = _UPDATE[metric.kind]
        if metric.kind == "counter" and rounds:
            rounds = [_sum(rounds)]  # faster than one increment per round
        for values in rounds[-1:] if metric.kind == "gauge" else rounds:
            if isinstance(values, Mapping):
                for label, value in values.items():
                    update(self._child(metric.name, label), value)
            else:
                for value in values if metric.kind == "histogram" else [values]:
                    update(self._child(metric.name), value)


def _sum(rounds: Sequence[Any]) -> Any:
    if isinstance(rounds[0], Mapping):
        return {label: sum(values[label] for values in rounds) for label in rounds[0]}
    return sum(rounds)


@contextmanager
def exporting(
    config: MetricsConfig, info: RunInfo, live: Callable[[], LiveHosts] | None = None
) -> Iterator[Exporter | None]:
    """Serve a run's metrics at an endpoint that Prometheus discovers. Yield None if metrics are disabled."""
    if not config.enabled:
        yield None
        return
    exporter = Exporter(info, config, live)
    file = discovery_file(config.discovery, info.run, info.folder)
    try:
        with Endpoint(exporter.registry, config.host, config.port, file, info.run, info.folder) as endpoint:
            yield exporter
            endpoint.linger(config.linger_seconds)
    finally:
        exporter.release()


def withdraw(config: MetricsConfig, folder: RunFolder) -> None:
    """Remove the discovery file of a run that can no longer remove it itself."""
    if config.enabled:
        path = str(folder.path.absolute())
        remove_discovery_file(discovery_file(config.discovery, folder.run_name, path))
