"""Metrics: what they hold, that they never hold a round up, and how Prometheus learns of them."""

import json
import socket
import stat
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from raybcgd.errors import ConfigError
from raybcgd.experiment import Experiment, RunFolder
from raybcgd.model.blocks import Block, BlockLayout
from raybcgd.problem import prepare
from raybcgd.record.endpoint import Endpoint, discovery_file
from raybcgd.record.metrics import FROM_RECORD, METRICS, Exporter, MetricsConfig, RunLabels, RunPlan, run_name
from raybcgd.record.norms import block_norms, server_norms, shared_out
from raybcgd.record.rounds import Dropped, RoundLog, RoundRecord
from raybcgd.running import run
from raybcgd.server.local import LocalPool
from tests.conftest import small

LABELS = RunLabels("a-run", "fedbcgd+", "digits")
PLAN = RunPlan(rounds=10, parameters=100, saves=True)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[RoundRecord, ...]:
    return run(small(rounds=4), out=tmp_path_factory.mktemp("metrics") / "run").records


def exporter(target: float = 0.9) -> Exporter:
    return Exporter(LABELS, MetricsConfig(target=target), PLAN)


def shown(registry: CollectorRegistry) -> dict[str, float]:
    """Every sample by its name and own labels."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            assert {k: v for k, v in sample.labels.items() if k in LABELS._fields} == LABELS._asdict()
            own = [v for k, v in sample.labels.items() if k not in LABELS._fields]
            found["/".join([sample.name.removeprefix("raybcgd_"), *own])] = sample.value
    return found


def test_counters_add_up_and_gauges_are_the_last_round(records: tuple[RoundRecord, ...]) -> None:
    watched = exporter()
    watched.take_up(records)
    samples = shown(watched.registry)
    assert samples["round"] == 3
    assert samples["uploaded_bytes_total"] == sum(r.upload_bytes for r in records)
    assert samples["uploaded_model_sizes_total"] == pytest.approx(records[-1].upload_d_total)
    assert samples["block_uploaded_floats_total/shared"] == sum(r.upload_floats_by_block[-1] for r in records)
    assert samples["client_seconds_count"] == sum(len(r.participants) for r in records)
    assert samples["momentum_norm/0"] == pytest.approx(records[-1].server_norms["v"][0])
    assert samples["phase_seconds/train"] == pytest.approx(records[-1].phase_seconds["train"])
    assert samples["exporter_seconds_total"] > 0
    assert "device_memory_bytes" not in samples  # there is no device, rather than one without memory in use


def test_a_round_that_was_not_evaluated_leaves_the_accuracy_as_it_was(records: tuple[RoundRecord, ...]) -> None:
    watched = exporter()
    watched.observe(records[0])
    watched.observe(records[1].model_copy(update={"accuracy": None, "loss": None}))
    assert shown(watched.registry)["accuracy_ratio"] == records[0].accuracy


def test_the_first_round_at_the_target_counts(records: tuple[RoundRecord, ...]) -> None:
    watched = exporter(target=0.5)
    for record, accuracy in zip(records, (0.1, 0.6, 0.4, 0.7), strict=True):
        watched.observe(record.model_copy(update={"accuracy": accuracy}))
    samples = shown(watched.registry)
    assert samples["target_rounds"] == 2
    assert samples["target_model_sizes"] == pytest.approx(records[1].upload_d_total)


def test_dropped_clients_are_counted_by_why_without_a_series_for_every_error(records: tuple[RoundRecord, ...]) -> None:
    dropped = tuple(Dropped(client=k, block=0, reason=why) for k, why in enumerate(("deadline", "ValueError: 1", "b")))
    watched = exporter()
    watched.observe(records[0].model_copy(update={"dropped": dropped}))
    samples = shown(watched.registry)
    assert (samples["dropped_clients_total/deadline"], samples["dropped_clients_total/error"]) == (1, 2)


def test_checkpoints_have_an_age_only_where_there_are_any(records: tuple[RoundRecord, ...]) -> None:
    assert "checkpoint_timestamp_seconds" not in shown(
        Exporter(LABELS, MetricsConfig(), PLAN._replace(saves=False)).registry
    )
    watched = exporter()
    assert shown(watched.registry)["checkpoint_timestamp_seconds"] == pytest.approx(time.time(), abs=60)
    watched.observe(records[0], checkpoint_at=12.0)
    assert shown(watched.registry)["checkpoint_timestamp_seconds"] == 12


def test_metrics_have_help_texts_and_names_of_their_own() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert all(len(metric.help) > 10 for metric in METRICS)
    text = generate_latest(exporter().registry).decode()
    assert text.count("# HELP raybcgd_") >= len(METRICS)


def test_old_logs_still_read(records: tuple[RoundRecord, ...], tmp_path: Path) -> None:
    """Fields that came later have defaults."""
    line = json.loads(records[0].model_dump_json())
    for name in ("movement", "server_norms", "queued", "hosts_pending", "state_disk_bytes", "upload_bytes_by_block"):
        del line[name]
    (tmp_path / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    exporter().take_up(RoundLog(tmp_path / "rounds.jsonl"))


def test_a_resumed_run_counts_on(tmp_path: Path) -> None:
    discovery = str(tmp_path / "discovery")
    run(small(rounds=2, metrics={"discovery": discovery}), out=tmp_path / "run")
    problem, data = prepare(small(rounds=4, metrics={"discovery": discovery}))
    experiment = Experiment(problem, data, RunFolder(tmp_path / "run"), resume=True)
    pool = LocalPool(problem, data, experiment.state_address)
    rounds = experiment.run(pool)
    next(rounds)
    log = list(RoundLog(tmp_path / "run/rounds.jsonl"))
    assert len(log) == 3
    assert f"raybcgd_uploaded_floats_total{{{_label(tmp_path)}}} {float(sum(r.upload_floats for r in log))}" in _scrape(
        Path(discovery)
    )
    rounds.close()  # as when a run is broken off
    pool.close()
    assert not list(Path(discovery).iterdir())


def _label(folder: Path) -> str:
    return f'algorithm="fedbcgd+",dataset="digits",run="{folder.name}/run"'


def _scrape(discovery: Path) -> str:
    (file,) = discovery.glob("*.json")
    (entry,) = json.loads(file.read_text())
    with urllib.request.urlopen(f"http://{entry['targets'][0]}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def test_metrics_can_be_turned_off(tmp_path: Path) -> None:
    run(small(rounds=1, metrics={"enabled": False, "discovery": str(tmp_path / "none")}), out=tmp_path / "run")
    assert not (tmp_path / "none").exists()


def test_it_listens_on_loopback_and_announces_itself_while_it_does(tmp_path: Path) -> None:
    file = discovery_file(str(tmp_path), "my runs/a")
    with Endpoint(exporter().registry, MetricsConfig().host, 0, file) as endpoint:
        assert endpoint.address.startswith("127.0.0.1:")
        assert json.loads(file.read_text())[0]["targets"] == [endpoint.address]
        assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert not file.exists()


def test_it_waits_for_a_reader_to_see_the_last_round_and_for_nobody_else(tmp_path: Path) -> None:
    with Endpoint(exporter().registry, "127.0.0.1", 0, tmp_path / "x.json") as endpoint:
        began = time.perf_counter()
        endpoint.linger(30)
        assert time.perf_counter() - began < 1
        _scrape(tmp_path)
        endpoint.linger(0.2)  # the reader does not come back
        assert 0.2 <= time.perf_counter() - began < 5
        _scrape(tmp_path)
        threading.Timer(0.2, _scrape, [tmp_path]).start()
        began = time.perf_counter()
        endpoint.linger(30)
        assert 0.1 < time.perf_counter() - began < 10


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"metrics\.port = {port}: cannot listen there"):
            Endpoint(CollectorRegistry(), "127.0.0.1", port, tmp_path / "x.json")


def test_runs_one_after_another_can_have_the_same_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for _ in range(3):
        with Endpoint(exporter().registry, "127.0.0.1", port, tmp_path / "x.json"):
            assert "raybcgd_planned_rounds" in _scrape(tmp_path)


def test_a_discovery_folder_that_cannot_be_written_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    run(small(rounds=1, metrics={"discovery": str(tmp_path / "file")}), out=tmp_path / "run")
    assert "set metrics.discovery" in caplog.text


def test_runs_are_named_by_their_folders() -> None:
    assert run_name(Path("runs/20260101-fedavg")) == "20260101-fedavg"
    assert run_name(Path("runs/20260101-compare/fedavg")) == "20260101-compare/fedavg"


def test_norms_are_by_block() -> None:
    layout = BlockLayout((), (Block("0", 0, 2, ()), Block("1", 2, 3, ())), Block("shared", 3, 4, ()))
    assert block_norms(torch.tensor([3.0, 4.0, 2.0, 0.0]), layout) == (5, 2, 0)

    class Server:
        def _asdict(self) -> dict[str, torch.Tensor]:
            return {"x": torch.zeros(4), "v": torch.ones(4), "predictors": torch.zeros(2, 4), "seen": torch.zeros(2)}

    assert list(server_norms(Server(), layout)) == ["v"]


def test_bytes_are_shared_out_whole() -> None:
    assert shared_out(10, (1, 1, 1)) == (3, 4, 3)
    assert shared_out(12, (1, 2, 0)) == (4, 8, 0)
    assert shared_out(5, (0, 0)) == (0, 0)


def test_the_endpoint_answers_during_a_round_within_50_ms(tmp_path: Path) -> None:
    """Measured while rounds run in the same process, where they and the endpoint share one interpreter."""
    discovery, taken, done = tmp_path / "discovery", [], threading.Event()

    def scrape() -> None:
        while not done.is_set():
            if list(discovery.glob("*.json")):
                began = time.perf_counter()
                _scrape(discovery)
                taken.append(time.perf_counter() - began)
            time.sleep(0.02)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        run(small(rounds=12, metrics={"discovery": str(discovery)}), out=tmp_path / "run")
    finally:
        done.set()
        thread.join()
    assert len(taken) >= 5
    assert median(taken) < 0.05


def test_a_scrape_never_blocks_a_round(records: tuple[RoundRecord, ...], tmp_path: Path) -> None:
    """Readers that ask and then do not read keep nothing locked."""
    watched = exporter()
    with Endpoint(watched.registry, "127.0.0.1", 0, tmp_path / "x.json") as endpoint:
        host, _, port = endpoint.address.partition(":")
        readers = [socket.create_connection((host, int(port))) for _ in range(5)]
        for reader in readers:
            reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.1)
        began = time.perf_counter()
        for record in records * 100:  # enough to be turned into metrics on the way
            watched.observe(record)
        assert time.perf_counter() - began < 0.5
        for reader in readers:
            reader.close()


def test_the_exporter_costs_less_than_a_hundredth_of_a_round(tmp_path: Path) -> None:
    """All that it takes for a run's rounds, whoever's thread it is in, against the median round."""
    problem, data = prepare(small(rounds=60, metrics={"enabled": False}))
    experiment = Experiment(problem, data, RunFolder(_made(tmp_path / "run")), resume=False)
    pool, watched = LocalPool(problem, data, experiment.state_address), exporter()
    cost, rounds = 0.0, []
    for record in experiment.run(pool):
        began = time.perf_counter()
        watched.observe(record)
        if record.round % 15 == 14:  # more often than Prometheus reads
            watched.registry.collect().__next__()
        cost += time.perf_counter() - began
        rounds.append(record.seconds)
    pool.close()
    assert shown(watched.registry)["round"] == 59
    assert cost / len(rounds) < 0.01 * median(rounds)


@pytest.mark.slow
def test_rounds_with_and_without_exporter_differ_by_less_than_a_hundredth(tmp_path: Path) -> None:
    """The median difference of neighbouring rounds of one run: a machine's speed changes by more within a minute.

    Reading, too, is done in rounds with the exporter, and about once a second, five times as often as Prometheus does.
    """
    problem, data = prepare(small(rounds=2000, checkpoint={"every": 0}, metrics={"enabled": False}))
    experiment = Experiment(problem, data, RunFolder(_made(tmp_path / "run")), resume=False)
    pool, watched = LocalPool(problem, data, experiment.state_address), exporter()
    with_it: list[float] = []
    without: list[float] = []
    began = time.perf_counter()
    for record in experiment.run(pool):
        watching = record.round % 4 in (0, 3)  # each comes first as often as second
        if watching:
            watched.observe(record)
            if record.round % 32 == 0:
                generate_latest(watched.registry)
        now = time.perf_counter()
        (with_it if watching else without).append(now - began)
        began = now
    pool.close()
    differs = median(a - b for a, b in zip(with_it, without, strict=True)) / median(without)
    print(f"the exporter adds {differs:.2%} to a round of {1000 * median(without):.1f} ms")
    assert differs < 0.01


def test_what_has_waited_is_read_within_50_ms_too(records: tuple[RoundRecord, ...], tmp_path: Path) -> None:
    watched = exporter()
    for record in (records * 100)[:255]:
        watched.observe(record)
    with Endpoint(watched.registry, "127.0.0.1", 0, tmp_path / "x.json"):
        began = time.perf_counter()
        text = _scrape(tmp_path)
        assert time.perf_counter() - began < 0.05
    assert "raybcgd_round_seconds_count" in text


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_every_metric_of_a_record_is_read_from_it(records: tuple[RoundRecord, ...]) -> None:
    unread = {metric.name for metric in FROM_RECORD if metric.read(records[-1]) in (None, {})}
    assert unread == {
        "phase_accuracy_ratio",
        "simulated_seconds",
        "object_store_bytes",
        "object_store_capacity_bytes",
        "device_memory_bytes",
    }


def test_discovery_files_can_be_read_by_others(tmp_path: Path) -> None:
    """Prometheus runs as another user."""
    with Endpoint(CollectorRegistry(), "127.0.0.1", 0, tmp_path / "x.json"):
        assert (tmp_path / "x.json").stat().st_mode & stat.S_IROTH
