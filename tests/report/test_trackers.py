"""Trackers get every round and the files of a run, and never stop it."""

import json
import logging
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from raybcgd.cli import app
from raybcgd.experiment import run
from raybcgd.record.rounds import RoundRecord
from raybcgd.report.tensorboard import scalars
from raybcgd.report.trackers import TensorBoardTracker
from tests.conftest import small

FILES = {"config.toml", "rounds.jsonl", "summary.json", "final.safetensors", "report.html"}


def events(folder: Path) -> dict[str, dict[int, float]]:
    """Return the curves in a folder of TensorBoard events."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = loader.EventAccumulator(str(folder))
    accumulator.Reload()
    return {
        name: {event.step: event.value for event in accumulator.Scalars(name)} for name in accumulator.Tags()["scalars"]
    }


def test_tensorboard_shows_every_round_also_after_a_resume(out: Path) -> None:
    run(small(rounds=2, track={"tensorboard": True}), out=out)
    result = run(small(rounds=4, track={"tensorboard": True}), out=out, resume=True)
    curves = events(out / "tensorboard")
    for record in result.records:
        for name, value in scalars(record).items():
            assert curves[name][record.round] == pytest.approx(value, rel=1e-6), name
    assert list(curves["quality/loss"]) == [0, 1, 2, 3]
    assert b'name = "fedbcgd+"' in shown_text(out / "tensorboard", "config/text_summary")


def shown_text(folder: Path, tag: str) -> bytes:
    """Return a text in a folder of TensorBoard events."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = loader.EventAccumulator(str(folder))
    accumulator.Reload()
    text: bytes = accumulator.Tensors(tag)[0].tensor_proto.string_val[0]
    return text


def mlflow_client(address: str, folder: Path) -> Any:
    """Return a client of an MLflow store that keeps files in a folder."""
    client = pytest.importorskip("mlflow", reason="MLflow is not installed").MlflowClient(address)
    if client.get_experiment_by_name("raybcgd") is None:
        client.create_experiment("raybcgd", artifact_location=str(folder / "artifacts"))
    return client


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
def test_rounds_are_there_while_the_run_is_in_progress(out: Path, tmp_path: Path, tracker: str) -> None:
    address = f"sqlite:///{tmp_path}/mlflow.db"
    if tracker == "mlflow":
        mlflow_client(address, tmp_path)

    def rounds() -> list[int]:
        if tracker == "tensorboard":
            if not list(out.glob("tensorboard/events*")):  # the tracker starts in a thread of its own
                return []
            return list(events(out / "tensorboard").get("quality/loss", ()))
        client = mlflow_client(address, tmp_path)
        found = client.search_runs([client.get_experiment_by_name("raybcgd").experiment_id])
        return [m.step for one in found for m in client.get_metric_history(one.info.run_id, "quality/loss")]

    def wait(record: RoundRecord) -> None:
        """Keep the run in its second round until the first one is shown."""
        deadline = time.monotonic() + 60
        while record.round == 1 and 0 not in rounds():
            assert time.monotonic() < deadline
            time.sleep(0.2)

    run(small(rounds=2, track={tracker: True if tracker == "tensorboard" else address}), out=out, observe=wait)
    assert sorted(rounds()) == [0, 1]


class WandbContent(NamedTuple):
    """What W&B wrote to a file."""

    rows: list[dict[str, Any]]
    config: dict[str, Any]
    artifacts: set[str]
    code: int | None
    """The exit code of the run, which comes last."""


def wandb_content(file: Path) -> WandbContent:
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    store.open_for_scan(str(file))
    found = WandbContent([], {}, set(), None)
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            found.rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item})
        elif kind == "run":
            found.config.update({item.key: json.loads(item.value_json) for item in record.run.config.update})
        elif kind == "artifact":
            found.artifacts.update(entry.path for entry in record.artifact.manifest.contents)
        elif kind == "exit":
            found = found._replace(code=record.exit.exit_code)
    return found


def test_wandb_offline_has_every_round(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="W&B is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    result = run(small(rounds=3, track={"wandb": "raybcgd-test"}), out=out)
    (file,) = out.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 30
    while (found := wandb_content(file)).code is None and time.monotonic() < deadline:
        time.sleep(0.2)  # W&B's own process can still be writing
    rows, config, artifacts, code = found
    assert [row["_step"] for row in rows] == [0, 1, 2]
    for row, done in zip(rows, result.records, strict=True):
        for name, value in scalars(done).items():
            assert row[name] == pytest.approx(value), name
    assert config["algorithm"]["name"] == "fedbcgd+"
    assert code == 0
    assert artifacts == FILES


def test_mlflow_has_every_round_the_settings_and_the_files(out: Path, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/mlflow.db"
    client, track = mlflow_client(address, tmp_path), {"mlflow": address}
    run(small(rounds=2, track=track), out=out)
    result = run(small(rounds=3, track=track), out=out, resume=True)
    experiment = client.get_experiment_by_name("raybcgd")
    (found,) = client.search_runs([experiment.experiment_id])  # the resumed run is the same run
    assert found.info.status == "FINISHED"
    assert found.data.params["algorithm.name"] == "fedbcgd+"
    for name in ("quality/loss", "traffic/upload_d_total", "blocks/movement/shared"):
        history = {metric.step: metric.value for metric in client.get_metric_history(found.info.run_id, name)}
        assert history == {r.round: pytest.approx(scalars(r)[name]) for r in result.records}
    assert {file.path for file in client.list_artifacts(found.info.run_id)} == FILES


def test_a_tracker_that_fails_is_reported_once_and_the_run_goes_on(
    out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: TensorBoardTracker, record: RoundRecord) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(TensorBoardTracker, "observe", fail)
    with caplog.at_level(logging.WARNING):
        result = run(small(rounds=3, track={"tensorboard": True}), out=out)
    assert len(result.records) == 3
    assert caplog.text.count("track.tensorboard failed and is now off (OSError: disk full)") == 1


def test_a_server_that_does_not_answer_delays_the_end_of_a_run_only_briefly(
    out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """MLflow itself would try for minutes."""
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setattr("raybcgd.report.trackers._CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        result = run(small(rounds=2, track={"mlflow": f"http://127.0.0.1:{silent.getsockname()[1]}"}), out=out)
        assert time.monotonic() - began < 60
    assert len(result.records) == 2
    assert (out / "summary.json").exists()
    assert f"the trackers of {out} did not finish within" in caplog.text


def test_a_missing_package_is_a_warning(
    out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    run(small(rounds=1, track={"mlflow": "http://127.0.0.1:9"}), out=out)
    assert "track.mlflow needs a package" in caplog.text
    assert "pip install raybcgd[mlflow]" in caplog.text


def test_a_misspelled_tracker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("[track]\ntensorbord = true\n")
    done = CliRunner().invoke(app, ["train", str(tmp_path / "x.toml")])
    assert done.exit_code == 2
    assert "track.tensorbord is not a setting; did you mean tensorboard?" in done.output
