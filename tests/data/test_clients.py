"""A data set's own clients: partitions from Python, and columns of client ids."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from raybcgd import Config, ConfigError, Dataset, run
from raybcgd.cli import app
from raybcgd.compare import compare
from raybcgd.config import load_config, load_run_config
from raybcgd.data.clients import as_clients
from raybcgd.data.partition import Dirichlet, Natural
from raybcgd.data.settings import PARTITIONS, DataConfig
from raybcgd.data.sources import cut
from raybcgd.problem import prepare
from raybcgd.storage import RunFolder
from tests.conftest import small

X = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
LISTS = [list(range(30)), [30, 31], np.arange(40, 60)]


def arrays(**more: Any) -> Dataset:
    return Dataset.from_tensors(X, Y, X[:20], Y[:20], **more)


def config(**changes: Any) -> Config:
    given = {"rounds": 2, "engine": "local", "metrics": {"enabled": False}, "algorithm": {"name": "fedavg"}}
    return Config(**{**given, **changes})


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (LISTS, ("0", "1", "2")),
        ({"ann": LISTS[0], "bob": LISTS[1], "cem": LISTS[2]}, ("ann", "bob", "cem")),
        ([torch.as_tensor(part) for part in LISTS], ("0", "1", "2")),
    ],
)
def test_lists_of_indices_become_the_clients(given: Any, names: tuple[str, ...], tmp_path: Path) -> None:
    problem, data = prepare(config(), dataset=arrays(partition=given))
    assert [part.tolist() for part in map(data.partitions[0].client, range(3))] == [list(part) for part in LISTS]
    assert problem.clients == 3
    result = run(config(), dataset=arrays(), partition=given, out=tmp_path / "run", progress=False)
    assert {client.client for record in result.records for client in record.participants} <= {0, 1, 2}
    assert json.loads((tmp_path / "run" / "partition.json").read_text())["names"] == list(names)
    assert 'kind = "natural"' in (tmp_path / "run" / "config.toml").read_text()


def test_one_id_per_sample_names_the_clients() -> None:
    ids = np.array(["b", "a", "c"])[np.arange(60) % 3]
    data = arrays(partition=ids)
    assert data.clients is not None
    assert data.clients.names == ("a", "b", "c")
    _, loaded = prepare(config(), dataset=data)
    assert loaded.partitions[0].client(1).tolist() == list(range(0, 60, 3)), "client 1 is b"
    assert as_clients(torch.arange(60) % 4, 60).names == ("0", "1", "2", "3")


def test_clients_that_a_partition_replaces_leave_no_names(parquet_folder: Path, tmp_path: Path) -> None:
    """There are as many new clients as there were hospitals."""
    folder = with_ids(parquet_folder, [f"H{i % 5:02d}" for i in range(20)])
    replaced = {"partition": {"kind": "iid", "clients": 5}}
    for name, more, shown in (("own", {}, True), ("other", replaced, False)):
        one = config(data=settings(folder, **more))
        run(one, out=tmp_path / name, progress=False)
        names = json.loads((tmp_path / name / "partition.json").read_text())["names"]
        assert (names is not None) == shown
        path = tmp_path / f"{name}.toml"
        path.write_text(one.to_toml())
        answer = CliRunner().invoke(app, ["data", "inspect", str(path)])
        assert answer.exit_code == 0, answer.output
        assert ("own clients" in answer.output) == ("H00" in answer.output) == shown


def test_data_sets_are_shown_in_one_line() -> None:
    data = arrays(partition=LISTS, name="mine")
    split = "Split(60 samples of 5 float32)"
    assert repr(data) == f"Dataset(mine: train {split}, test {split.replace('60', '20')}, 2 classes, 3 clients)"
    assert repr(data.clients) == "Clients(3 clients of 60 samples)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[0, 1], [1, 2]], "partition gives sample 1 to clients 0 and 1; a sample can have only one client"),
        ({"ann": [0], "bob": [60]}, "client bob has sample 60, but there are 60 training samples; use 0 to 59"),
        ([[0], [-1]], "client 1 has sample -1"),
        ([[0], []], "client 1 has no samples; give every client at least one"),
        ([[0, 0], [1]], "client 0 has sample 0 twice; list every sample once"),
        ([list(range(60))], "partition has one client; give at least two"),
        ([], "partition has no clients"),
        ({}, "partition has no clients"),
        ([[0.5], [1.5]], "client 0 is not a flat list of integers; list its sample indices"),
        ([[0, [1]], [2]], "client 0 is not a flat list of integers"),
        (np.zeros(60, int), "the same client id, 0, for every sample"),
        (np.zeros(7, int), "7 client ids for 60 training samples; give one id per sample, or one list"),
        (np.linspace(0, 1, 60), "client ids of type float64; use integers or strings"),
        (7, "partition is int; pass one list of sample indices per client"),
    ],
)
def test_a_wrong_partition_gives_one_line(given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(config(), dataset=arrays(), partition=given, progress=False)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_partition_of_configured_data_needs_python_to_resume(tmp_path: Path) -> None:
    half = np.array_split(np.arange(1400), 8)
    whole = run(small(rounds=3), partition=half, out=tmp_path / "whole", progress=False)
    out = tmp_path / "run"
    run(small(rounds=2, checkpoint={"every": 1}), partition=half, out=out, progress=False)
    answer = CliRunner().invoke(app, ["resume", str(out), "--set", "rounds=3"])
    assert answer.exit_code != 0
    assert "run(config, partition=…, out=…, resume=True)" in answer.output
    resumed = run(small(rounds=3, checkpoint={"every": 1}), partition=half, out=out, resume=True, progress=False)
    assert resumed.summary["sha256"] == whole.summary["sha256"]


def test_a_comparison_takes_arrays_with_clients(tmp_path: Path) -> None:
    result = compare(
        config(), algorithms=["fedavg", "scaffold"], dataset=arrays(partition=LISTS), out=tmp_path / "c", progress=False
    )
    assert not result.failures

    same = compare(
        config(),
        algorithms=["fedavg"],
        dataset=(X, Y, X[:20], Y[:20]),
        partition=LISTS,
        out=tmp_path / "e",
        progress=False,
    )
    assert same.runs["FedAvg"].summary["sha256"] == result.runs["FedAvg"].summary["sha256"]
    plain = compare(config(), algorithms=["fedavg"], dataset=(X, Y, X, Y), out=tmp_path / "d", progress=False)
    assert not plain.failures


def test_a_comparison_partitions_configured_data_as_a_run_does(tmp_path: Path) -> None:
    half = np.array_split(np.arange(1400), 8)
    data = {"validation_share": 0.2, "partition": {"kind": "dirichlet", "rho": 0.3, "clients": 20}}
    alone = run(small(rounds=1, data=data), partition=half, out=tmp_path / "run", progress=False)
    found = compare(
        small(rounds=1, data=data), algorithms=["fedbcgd+"], partition=half, out=tmp_path / "c", progress=False
    )
    assert found.runs["FedBCGD+"].summary["sha256"] == alone.summary["sha256"]
    assert json.loads((tmp_path / "c/fedbcgd_plus/partition.json").read_text())["clients"] == 8


def test_validation_data_are_held_out_of_python_data_and_leave_every_client_a_sample() -> None:
    everyone = arrays(partition=np.arange(60) // 2)
    held = cut(everyone, DataConfig(validation_share=0.9, evaluate_on="validation"))
    assert held.clients is not None
    assert len(np.unique(held.clients.owners)) == 30
    assert len(held.train) + len(held.test) == 60
    problem, data = prepare(config(data={"validation_share": 0.5, "evaluate_on": "validation"}), dataset=everyone)
    assert problem.clients == 30
    assert len(data.dataset.train) < 60, "data.validation_share also applies to a data set from Python"


def with_ids(folder: Path, ids: Any, column: str = "writer") -> Path:
    """Add a column of client ids to the training files of a Parquet folder."""
    start = 0
    for path in sorted(folder.glob("train-*.parquet")):
        table = pq.read_table(path)
        part = pa.array(ids[start : start + len(table)])
        start += len(table)
        pq.write_table(table.append_column(column, part), path)
    return folder


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {"source": "parquet", "root": str(folder), "client_column": "writer", **more}


@pytest.mark.parametrize("ids", [[f"w{i % 5}" for i in range(20)], [7 * (i % 5) for i in range(20)]])
def test_a_parquet_column_of_client_ids_is_a_natural_partition(parquet_folder: Path, ids: Any, tmp_path: Path) -> None:
    folder = with_ids(parquet_folder, ids)
    problem, data = prepare(config(data=settings(folder)))
    assert problem.clients == 5
    assert data.partitions[0].client(2).tolist() == [2, 7, 12, 17]
    path = tmp_path / "c.toml"
    path.write_text(config(data=settings(folder)).to_toml())
    shown = CliRunner().invoke(app, ["data", "inspect", str(path)])
    assert shown.exit_code == 0, shown.output
    assert f"{ids[0]}, {ids[1]}, {ids[2]}" in shown.output


def test_dictionary_ids_and_a_cap_of_samples_work(parquet_folder: Path) -> None:
    ids = pa.array([f"w{i % 5}" for i in range(20)]).dictionary_encode()
    folder = with_ids(parquet_folder, ids)
    _, data = prepare(config(data=settings(folder, partition={"samples_per_client": 3})))
    assert data.partitions[0].sizes.tolist() == [3] * 5


def test_another_partition_can_replace_the_clients_of_the_data(
    parquet_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = with_ids(parquet_folder, [f"w{i % 5}" for i in range(20)])
    problem, _ = prepare(config(data=settings(folder, partition={"kind": "iid", "clients": 4})))
    assert problem.clients == 4
    assert 'data.partition.kind = "iid" replaces the 5 clients of the data set' in caplog.text


def clinics(_: DataConfig) -> Dataset:
    return arrays(partition=LISTS)


@pytest.mark.parametrize("written", [{"kind": "dirichlet"}, {"clients": 50}, {"kind": "dirichlet", "rho": 0.6}])
def test_a_partition_that_is_set_to_its_default_replaces_the_clients_of_the_data(
    written: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(config(data={"source": "tests.data.test_clients:clinics"}).to_toml())
    assert prepare(load_config(file))[0].clients == 3
    assert prepare(config(data={"source": clinics, "partition": {}}))[0].clients == 3, "an empty table sets nothing"
    overrides = [f"data.partition.{key}={value}" for key, value in written.items()]
    replaced = load_config(file, overrides)
    file.write_text(replaced.to_toml())
    assert not caplog.text
    for each in (replaced, load_config(file), config(data={"source": clinics, "partition": written})):
        caplog.clear()
        assert prepare(each)[0].clients == 50
        assert 'data.partition.kind = "dirichlet" replaces the 3 clients of the data set' in caplog.text


def test_a_client_column_gives_way_to_the_default_partition(parquet_folder: Path) -> None:
    data = settings(with_ids(parquet_folder, [f"w{i % 5}" for i in range(20)]))
    written = DataConfig(**data, partition={"kind": "iid", "clients": 5}).partition
    for partition in ({"kind": "dirichlet", "clients": 4}, Dirichlet(clients=4), written):
        found = prepare(config(data={**data, "partition": partition}))[0].config.data.partition
        assert not isinstance(found, Natural)
    with pytest.raises(ConfigError, match=r"data.partition.clients = 50 is more than the 20 training samples"):
        prepare(config(data={**data, "partition": {"kind": "dirichlet"}}))


def test_run_folders_record_the_partition_that_was_used(tmp_path: Path) -> None:
    source = {"source": "tests.data.test_clients:clinics"}
    for name, data, kind in (
        ("own", source, "natural"),
        ("set", {**source, "partition": {"kind": "dirichlet"}}, "dirichlet"),
        ("none", {}, "dirichlet"),
    ):
        out = tmp_path / name
        result = run(config(data=data, checkpoint={"every": 1}), out=out, progress=False)
        recorded = load_run_config(RunFolder(out), trust=True)
        assert PARTITIONS.name_of(type(recorded.data.partition)) == kind
        assert run(recorded, out=out, resume=True, progress=False).summary["sha256"] == result.summary["sha256"]
        changed = recorded.model_copy(update={"rounds": 3})
        assert len(run(changed, out=out, resume=True, progress=False).records) == 3


@pytest.mark.parametrize(
    ("data", "partition"),
    [({"source": "tests.data.test_clients:clinics"}, None), ({}, [list(range(k, 900, 3)) for k in range(3)])],
)
def test_the_best_config_of_a_sweep_keeps_the_clients_of_the_data(
    data: dict[str, Any], partition: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Ray: only the points' runs need it."""
    from raybcgd import sweep

    def ran(trials: list[Config], points: list[dict[str, Any]], *_: Any) -> list[sweep.Point]:
        return [sweep.Point(k, point, {"last_tenth_accuracy": 0.5}) for k, point in enumerate(points)]

    monkeypatch.setattr(sweep, "cluster", lambda _: nullcontext())
    monkeypatch.setattr(sweep, "_run_all", ran)
    grid = {"algorithm.lr": [0.1]}
    sweep.sweep(config(data=data), grid, partition=partition, out=tmp_path / "sweep", progress=False)
    best = load_config(tmp_path / "sweep/best.toml")
    assert isinstance(best.data.partition, Natural)
    assert prepare(best, partition=partition)[0].clients == 3


IDS = [f"w{i % 5}" for i in range(20)]


@pytest.mark.parametrize(
    ("ids", "changes", "message"),
    [
        (IDS, {"client_column": "user"}, 'data.client_column = "user" is not a column of .*; use one of image, label'),
        (["a"] * 20, {}, 'data.client_column = "writer" has the same client id, a, for every sample'),
        ([0.5] * 20, {}, 'data.client_column = "writer" of .* has double; use integers or strings'),
        (["a", None] * 10, {}, 'data.client_column = "writer" of .* has rows without a client; remove them'),
        (IDS, {"partition": {"clients": 9}}, r"data.partition.clients = 9, but the data has 5 clients; remove it"),
        (IDS, {"phases": {"count": 2}}, "data.phases assigns the samples to clients itself; .*: data.client_column, "),
    ],
)
def test_wrong_client_columns_give_one_line(parquet_folder: Path, ids: Any, changes: Any, message: str) -> None:
    folder = with_ids(parquet_folder, ids)
    with pytest.raises(ConfigError, match=message) as caught:
        prepare(config(data={**settings(folder), **changes}))
    assert "\n" not in str(caught.value)


def test_clients_where_the_data_has_none_give_one_line(image_folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r'data.partition.kind = "natural" needs data with clients; set data.client_c'
    ):
        prepare(config(data={"partition": {"kind": "natural"}}))
    with pytest.raises(ConfigError, match=r'data.client_column has no effect with data.source = "image_folder"'):
        prepare(config(data={**settings(image_folder), "source": "image_folder"}))
