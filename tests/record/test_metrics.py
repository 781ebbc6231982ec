"""Metrics: their names, values and cost."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from raybcgd.engine.local import LocalSession
from raybcgd.experiment import run
from raybcgd.problem import prepare
from raybcgd.record.discovery import read_targets
from raybcgd.record.endpoint import Endpoint
from raybcgd.record.metrics import FROM_RECORD, METRICS, RUN_LABELS, Exporter, RunInfo
from raybcgd.record.rounds import Dropped, LiveHosts, Metric, RoundLog, RoundRecord
from raybcgd.record.settings import MetricsConfig
from raybcgd.section import Section
from raybcgd.storage import RunFolder
from tests.conftest import small
from tests.record.scraping import scrape

INFO = RunInfo("a-run", "fedbcgd+", "digits", rounds=10, parameters=100, saves=True)
NOT_EXPORTED = {
    "data_phase",
    "traffic.upload_d_total",
    "blocks.server_norms",
    "blocks.edges",
    "timing.finished_at",
    "hosts.device",
}
"""Fields of the record that declare no metric. The counter of `upload_d` already sums to `upload_d_total`, and
`finished_at` is exported as `round_timestamp_seconds`."""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[RoundRecord, ...]:
    return run(small(rounds=4), out=tmp_path_factory.mktemp("metrics") / "run").records


def exporter(target: float = 0.9) -> Exporter:
    return Exporter(INFO, MetricsConfig(target=target))


def changed(record: RoundRecord, group: str, **values: object) -> RoundRecord:
    """Return the record with new values in one of its groups."""
    return record.model_copy(update={group: getattr(record, group).model_copy(update=values)})


def fields(section: type[Section], prefix: str = "") -> Iterator[tuple[str, list[Metric]]]:
    """Yield every field of the record and the metrics that it declares."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from fields(field.annotation, f"{name}.")
        else:
            yield prefix + name, [item for item in field.metadata if isinstance(item, Metric)]


def shown(registry: CollectorRegistry) -> dict[str, float]:
    """Return every sample, by its name and the values of the labels that are not the run's."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            assert tuple(sample.labels[name] for name in RUN_LABELS) == INFO[:3]
            own = [value for name, value in sample.labels.items() if name not in RUN_LABELS]
            found["/".join([sample.name.removeprefix("raybcgd_"), *own])] = sample.value
    return found


def test_every_field_of_the_record_is_a_metric_or_listed_as_not_exported() -> None:
    assert {name for name, metrics in fields(RoundRecord) if not metrics} == NOT_EXPORTED


def test_a_metric_is_named_after_its_group_and_field() -> None:
    declared = [
        (metric.name or name.replace(".", "_")) + "_total" * (metric.kind == "counter")
        for name, metrics in fields(RoundRecord)
        for metric in metrics
    ]
    assert declared == [metric.name for metric in FROM_RECORD]


def test_every_metric_of_the_record_has_a_value(records: tuple[RoundRecord, ...]) -> None:
    empty = {metric.name for metric in FROM_RECORD if metric.read(records[-1]) in (None, {})}
    assert empty == {
        "quality_accuracy_by_phase",
        "quality_client_accuracy",
        "quality_metrics",
        "traffic_simulated_seconds",
        "hosts_object_store_bytes",
        "hosts_object_store_capacity_bytes",
        "hosts_device_memory_bytes",
        "hosts_device_reserved_bytes",
    }


def test_counters_are_sums_and_gauges_are_the_last_round(records: tuple[RoundRecord, ...]) -> None:
    watched = exporter()
    watched.replay(records)
    samples = shown(watched.registry)
    assert samples["round"] == 3
    assert samples["traffic_upload_bytes_total"] == sum(r.traffic.upload_bytes for r in records)
    assert samples["traffic_upload_d_total"] == pytest.approx(records[-1].traffic.upload_d_total)
    assert samples["blocks_upload_floats_total/shared"] == sum(r.blocks.upload_floats[-1] for r in records)
    assert samples["client_seconds_count"] == sum(len(r.participants) for r in records)
    assert samples["blocks_momentum/0"] == pytest.approx(records[-1].blocks.server_norms["v"][0])
    assert samples["timing_stage_seconds/train"] == pytest.approx(records[-1].timing.stage_seconds["train"])
    assert samples["exporter_seconds_total"] > 0
    assert "hosts_device_memory_bytes" not in samples  # without an accelerator there is no value, not 0


def test_the_time_of_a_scrape_without_new_rounds_counts_too() -> None:
    watched = exporter()
    before = shown(watched.registry)["exporter_seconds_total"]
    assert shown(watched.registry)["exporter_seconds_total"] > before


def test_a_round_without_evaluation_keeps_the_last_accuracy(records: tuple[RoundRecord, ...]) -> None:
    watched = exporter()
    watched.observe(records[0])
    watched.observe(changed(records[1], "quality", accuracy=None, loss=None))
    assert shown(watched.registry)["quality_accuracy"] == records[0].quality.accuracy


def test_the_target_is_reached_in_the_first_round_at_or_above_it(records: tuple[RoundRecord, ...]) -> None:
    watched = exporter(target=0.5)
    for record, accuracy in zip(records, (0.1, 0.6, 0.4, 0.7), strict=True):
        watched.observe(changed(record, "quality", accuracy=accuracy))
    samples = shown(watched.registry)
    assert samples["target_rounds"] == 2
    assert samples["target_upload_d"] == pytest.approx(records[1].traffic.upload_d_total)


def test_dropped_clients_have_one_series_for_deadlines_and_one_for_all_errors(records: tuple[RoundRecord, ...]) -> None:
    dropped = tuple(
        Dropped(client=k, block=0, reason=reason) for k, reason in enumerate(("deadline", "ValueError: 1", "b"))
    )
    watched = exporter()
    watched.observe(records[0].model_copy(update={"dropped": dropped}))
    samples = shown(watched.registry)
    assert (samples["dropped_clients_total/deadline"], samples["dropped_clients_total/error"]) == (1, 2)


def test_only_runs_with_checkpoints_export_a_checkpoint_time(records: tuple[RoundRecord, ...]) -> None:
    unsaved = Exporter(INFO._replace(saves=False), MetricsConfig())
    assert "checkpoint_timestamp_seconds" not in shown(unsaved.registry)
    watched = exporter()
    assert shown(watched.registry)["checkpoint_timestamp_seconds"] == pytest.approx(time.time(), abs=60)
    watched.observe(records[0], checkpoint_at=12.0)
    assert shown(watched.registry)["checkpoint_timestamp_seconds"] == 12


def test_metrics_have_unique_names_and_help_texts() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert all(len(metric.help) > 10 for metric in METRICS)
    text = generate_latest(exporter().registry).decode()
    assert text.count("# HELP raybcgd_") >= len(METRICS)


def test_logs_without_the_optional_fields_are_readable(records: tuple[RoundRecord, ...], tmp_path: Path) -> None:
    """A field that is added later needs a default."""
    line = json.loads(records[0].model_dump_json())
    for name, group in ((name, type(getattr(records[0], name))) for name in line):
        for field in group.model_fields if issubclass(group, Section) else ():
            if not group.model_fields[field].is_required():
                del line[name][field]
    (tmp_path / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    exporter().replay(RoundLog(tmp_path / "rounds.jsonl"))


def test_hosts_are_read_from_the_pool_and_restarts_are_counted_once(records: tuple[RoundRecord, ...]) -> None:
    hosts = [LiveHosts(0, 4, 0)]
    live = Exporter(INFO, MetricsConfig(), lambda: hosts[0])

    def seen() -> tuple[float, ...]:
        found = shown(live.registry)
        return found["hosts_up"], found["hosts_pending"], found["hosts_restarted_total"]

    lost = records[0].model_copy(update={"hosts": records[0].hosts.model_copy(update={"restarted": 3})})
    live.replay([lost])  # the round before a resume
    assert seen() == (0, 4, 3)
    hosts[0] = LiveHosts(2, 2, 4)
    assert seen() == (2, 2, 7), "before the round has a record"
    live.observe(lost.model_copy(update={"hosts": lost.hosts.model_copy(update={"up": 9, "restarted": 4})}))
    assert seen() == (2, 2, 7), "and not again with the record"


def test_counters_continue_after_a_resume(tmp_path: Path) -> None:
    discovery = str(tmp_path / "discovery")
    run(small(rounds=2, metrics={"discovery": discovery}), out=tmp_path / "run")
    problem, data = prepare(small(rounds=4, metrics={"discovery": discovery}))
    session = LocalSession(problem, data, RunFolder(tmp_path / "run"), resume=True)
    rounds = session.records()
    next(rounds)
    log = list(RoundLog(tmp_path / "run/rounds.jsonl"))
    assert len(log) == 3
    total = float(sum(record.traffic.upload_floats for record in log))
    assert f"raybcgd_traffic_upload_floats_total{{{_label(tmp_path)}}} {total}" in scrape(Path(discovery))
    rounds.close()  # as on Ctrl-C
    session.close()
    assert not list(Path(discovery).iterdir())


def _label(folder: Path) -> str:
    return f'algorithm="fedbcgd+",dataset="digits",run="{folder.name}/run"'


def test_metrics_can_be_disabled(tmp_path: Path) -> None:
    run(small(rounds=1, metrics={"enabled": False, "discovery": str(tmp_path / "none")}), out=tmp_path / "run")
    assert not (tmp_path / "none").exists()


def test_an_unwritable_discovery_folder_is_only_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    run(small(rounds=1, metrics={"discovery": str(tmp_path / "file")}), out=tmp_path / "run")
    assert "set metrics.discovery" in caplog.text


def test_a_run_is_named_after_its_folder() -> None:
    assert RunFolder(Path("runs/20260101-fedavg")).run_name == "20260101-fedavg"
    assert RunFolder(Path("runs/20260101-compare/fedavg")).run_name == "20260101-compare/fedavg"


def test_the_endpoint_answers_during_a_round_within_50_ms(tmp_path: Path) -> None:
    """The rounds and the endpoint share one interpreter."""
    discovery, taken, done = tmp_path / "discovery", [], threading.Event()

    def keep_scraping() -> None:
        while not done.is_set():
            if list(discovery.glob("*.json")):
                began = time.perf_counter()
                scrape(discovery)
                taken.append(time.perf_counter() - began)
            time.sleep(0.02)

    thread = threading.Thread(target=keep_scraping)
    thread.start()
    try:
        run(small(rounds=12, metrics={"discovery": str(discovery)}), out=tmp_path / "run")
    finally:
        done.set()
        thread.join()
    assert len(taken) >= 5
    assert median(taken) < 0.05


def test_slow_readers_do_not_delay_a_round(records: tuple[RoundRecord, ...], tmp_path: Path) -> None:
    """Clients that send a request and never read the response hold no lock."""
    watched = exporter()
    with Endpoint(watched.registry, "127.0.0.1", 0, tmp_path / "x.json") as endpoint:
        host, _, port = endpoint.address.partition(":")
        readers = [socket.create_connection((host, int(port))) for _ in range(5)]
        for reader in readers:
            reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.1)
        began = time.perf_counter()
        for record in records * 100:  # more than the exporter queues
            watched.observe(record)
        assert time.perf_counter() - began < 0.5
        for reader in readers:
            reader.close()


def test_the_exporter_takes_less_than_one_percent_of_a_round(tmp_path: Path) -> None:
    """Compare its total time, in any thread, with the median round."""
    problem, data = prepare(small(rounds=60, local={"epochs": 5}, metrics={"enabled": False}))
    session, watched = LocalSession(problem, data, RunFolder(tmp_path), resume=False), exporter()
    cost, rounds = 0.0, []
    for record in session.records():
        began = time.perf_counter()
        watched.observe(record)
        if record.round % 15 == 14:  # more often than Prometheus scrapes
            watched.registry.collect().__next__()
        cost += time.perf_counter() - began
        rounds.append(record.timing.seconds)
    session.close()
    assert shown(watched.registry)["round"] == 59
    assert cost / len(rounds) < 0.01 * median(rounds)


@pytest.mark.slow
def test_rounds_with_and_without_exporter_differ_by_less_than_one_percent(tmp_path: Path) -> None:
    """Take the median difference of neighbouring rounds, because a machine's speed varies by more within a minute.

    Rounds with the exporter include about one scrape per second, five times as many as Prometheus makes.
    """
    problem, data = prepare(small(rounds=2000, checkpoint={"every": 0}, metrics={"enabled": False}))
    session, watched = LocalSession(problem, data, RunFolder(tmp_path), resume=False), exporter()
    with_it: list[float] = []
    without: list[float] = []
    began = time.perf_counter()
    for record in session.records():
        watching = record.round % 4 in (0, 3)  # so that each kind comes first equally often
        if watching:
            watched.observe(record)
            if record.round % 32 == 0:
                generate_latest(watched.registry)
        now = time.perf_counter()
        (with_it if watching else without).append(now - began)
        began = now
    session.close()
    differs = median(a - b for a, b in zip(with_it, without, strict=True)) / median(without)
    print(f"the exporter adds {differs:.2%} to a round of {1000 * median(without):.1f} ms")
    assert differs < 0.01


def test_a_scrape_with_255_waiting_rounds_takes_less_than_50_ms_of_cpu_time(
    records: tuple[RoundRecord, ...], tmp_path: Path
) -> None:
    watched = exporter()
    for record in (records * 100)[:255]:
        watched.observe(record)
    with Endpoint(watched.registry, "127.0.0.1", 0, tmp_path / "x.json"):
        began = time.process_time()
        text = scrape(tmp_path)
        assert time.process_time() - began < 0.05
    assert "raybcgd_timing_round_seconds_count" in text


def test_runs_with_the_same_last_folders_are_both_announced_and_withdrawn(tmp_path: Path) -> None:
    """Keyed by name, they would share one discovery file and hide each other."""
    discovery, seen = tmp_path / "discovery", []
    config = small(rounds=1, metrics={"discovery": str(discovery)})

    def inner(_: RoundRecord) -> None:
        seen.append({target.instance for target in read_targets(discovery)})

    def outer(_: RoundRecord) -> None:
        run(config, out=tmp_path / "two/x/run", observe=inner)

    run(config, out=tmp_path / "one/x/run", observe=outer)
    assert seen == [{str(tmp_path / "one/x/run"), str(tmp_path / "two/x/run")}]
    assert read_targets(discovery) == []
