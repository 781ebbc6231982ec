"""A run's rounds as Prometheus metrics. The record's annotations declare them; this file exports them."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from threading import Lock
from typing import Any, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from raybcgd.record.endpoint import Endpoint, discovery_file, remove_discovery_file
from raybcgd.record.rounds import SECONDS_BUCKETS, Metric, RoundRecord
from raybcgd.record.settings import MetricsConfig
from raybcgd.section import Section
from raybcgd.storage import RunFolder

RUN_LABELS = ("run", "algorithm", "dataset")
"""On every metric, to tell runs apart."""
_MAX_WAITING = 256
"""Rounds that wait for a scrape before they are converted without one."""


class RunInfo(NamedTuple):
    """What is known of a run before its first round."""

    run: str
    algorithm: str
    dataset: str
    rounds: int
    parameters: int
    saves: bool
    """Whether it writes checkpoints."""


class Exported(NamedTuple):
    """A metric without its `raybcgd_` prefix."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    by: tuple[str, ...] = ()
    """The label beside those of the run."""
    read: Callable[[RoundRecord], Any] = lambda _: None
    """Return one value, a value per label, a list of observations, or None."""


def _declared(section: type[Section], group: str = "") -> Iterator[Exported]:
    """Yield the metrics that a record's annotations declare."""
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from _declared(inner, name)
        for metric in field.metadata:
            if isinstance(metric, Metric):
                text = metric.help or (field.description or "").split(". ")[0].rstrip(".") + "."
                total = "_total" if metric.kind == "counter" else ""
                full = (metric.name or f"{group}_{name}".lstrip("_")) + total
                by = () if metric.by is None else (metric.by,)
                yield Exported(full, metric.kind, text, by, _reader(group, name, metric))


def _reader(group: str, name: str, metric: Metric) -> Callable[[RoundRecord], Any]:
    def read(record: RoundRecord) -> Any:
        value = getattr(getattr(record, group) if group else record, name)
        if value is None:
            return None
        if metric.by == "block":
            return _by_block(value)
        return value if metric.read is None else metric.read(value)

    return read


def _by_block(values: Sequence[float | None]) -> dict[str, float]:
    names = [*map(str, range(len(values) - 1)), "shared"]
    return {name: float("nan") if v is None else float(v) for name, v in zip(names, values, strict=bool(values))}


FROM_RECORD = tuple(_declared(RoundRecord))
OWN = (
    Exported("planned_rounds", "gauge", "Rounds that the run will do."),
    Exported("parameters", "gauge", "d, the number of coordinates of the model."),
    Exported("start_timestamp_seconds", "gauge", "When the run started or resumed."),
    Exported("round_timestamp_seconds", "gauge", "When the last round finished; before the first round, the start."),
    Exported("checkpoint_timestamp_seconds", "gauge", "When the last checkpoint was saved; before that, the start."),
    Exported("target_accuracy", "gauge", "Target accuracy."),
    Exported("target_rounds", "gauge", "Rounds until the target accuracy was first reached."),
    Exported("target_upload_d", "gauge", "Mean upload per participant until then, in units of d."),
    Exported("exporter_seconds_total", "counter", "Time spent on these metrics, mostly during scrapes."),
)
"""Metrics that are not in a record."""
METRICS = (*FROM_RECORD, *OWN)


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

    A round only leaves its record here. A scrape converts the waiting records in its own thread.
    """

    def __init__(self, info: RunInfo, config: MetricsConfig) -> None:
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
        if key not in self._children:  # looking it up again is ten times cheaper
            self._children[key] = self._instruments[name].labels(*self._labels, *values)
        return self._children[key]

    def take_up(self, records: Iterable[RoundRecord]) -> None:
        """Start from the rounds before a resume."""
        for record in records:
            self.observe(record)
        self._catch_up()

    def observe(self, record: RoundRecord, checkpoint_at: float | None = None) -> None:
        """Take a finished round, and the Unix time of the last checkpoint."""
        self._waiting.append((record, checkpoint_at))
        if len(self._waiting) >= _MAX_WAITING:
            self._catch_up()

    def _catch_up(self) -> None:
        """Export the waiting rounds: the last value of gauges, all values of everything else."""
        began = time.perf_counter()
        with self._one_reader:
            news = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if not news:
                return
            records = [record for record, _ in news]
            for metric in FROM_RECORD:
                self._show(metric, [values for record in records if (values := metric.read(record)) is not None])
            self._stamp("round", [record.timing.finished_at for record in records])
            self._stamp("checkpoint", [saved_at for _, saved_at in news])
            self._look_for_target(records)
            self._child("exporter_seconds_total").inc(time.perf_counter() - began)

    def _stamp(self, name: str, times: Sequence[float | None]) -> None:
        known = [at for at in times if at is not None]
        if known:
            self._child(f"{name}_timestamp_seconds").set(known[-1])

    def _look_for_target(self, records: Iterable[RoundRecord]) -> None:
        for record in () if self._reached else records:
            if record.quality.accuracy is not None and record.quality.accuracy >= self._target:
                self._reached = True
                self._child("target_rounds").set(record.round + 1)
                self._child("target_upload_d").set(record.traffic.upload_d_total)
                return

    def _show(self, metric: Exported, values: Sequence[Any]) -> None:
        """Export one metric of several rounds."""
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
    """Return a metric's values by its own labels."""
    return {(key,): value for key, value in values.items()} if isinstance(values, Mapping) else {(): values}


def _sums(values: Sequence[float | Mapping[str, float]]) -> dict[tuple[str, ...], float]:
    total: dict[tuple[str, ...], float] = {}
    for one in values:
        for key, value in _named(one).items():
            total[key] = total.get(key, 0.0) + value
    return total


class Silent:
    """The exporter of a run without metrics."""

    def take_up(self, records: Iterable[RoundRecord]) -> None:
        """Do nothing."""

    def observe(self, record: RoundRecord, checkpoint_at: float | None = None) -> None:
        """Do nothing."""


@contextmanager
def exporting(config: MetricsConfig, info: RunInfo) -> Iterator[Exporter | Silent]:
    """Serve a run's metrics at an endpoint that Prometheus finds."""
    if not config.enabled:
        yield Silent()
        return
    exporter = Exporter(info, config)
    with Endpoint(exporter.registry, config.host, config.port, discovery_file(config.discovery, info.run)) as endpoint:
        yield exporter
        endpoint.linger(config.linger_seconds)


def withdraw(config: MetricsConfig, folder: RunFolder) -> None:
    """Remove the discovery file of a run that cannot do so itself."""
    if config.enabled:
        remove_discovery_file(discovery_file(config.discovery, folder.run_name))
