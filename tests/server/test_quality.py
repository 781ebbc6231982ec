"""What a run measures besides test accuracy and loss: the clients' accuracies, custom metrics, and early stopping."""

import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from raybcgd import ConfigError, run
from raybcgd.cli.report import report
from raybcgd.client.host import ClientHost
from raybcgd.data.normalise import normalise
from raybcgd.messages import Piece, Score
from raybcgd.problem import prepare
from raybcgd.record.rounds import RoundLog
from raybcgd.report.tables import run_table
from raybcgd.server.budget import ended_by, limits_to_raise
from raybcgd.server.client_quality import client_quality
from tests.conftest import small


def surprise(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_the_clients_own_accuracies_and_own_metrics_are_recorded(out: Path) -> None:
    evaluation = {"clients": "all", "metrics": ["top5", surprise], "batch_size": 30}
    config = small(rounds=2, evaluation=evaluation)
    result = run(config, out=out)
    _, data = prepare(config)
    accuracies = []
    for client in range(20):
        rows = data.partitions[0].client(client)
        inputs = normalise(torch.from_numpy(data.dataset.train.inputs[rows]), data.dataset)
        guess = result.model.eval()(inputs).argmax(-1).numpy()
        accuracies.append((guess == data.dataset.train.targets[rows]).mean())
    quality = result.records[-1].quality
    assert quality.clients is not None
    assert quality.clients.mean == pytest.approx(np.mean(accuracies))
    assert quality.clients.worst_tenth == pytest.approx(np.mean(sorted(accuracies)[:2]))
    assert quality.clients.deviation == pytest.approx(np.std(accuracies))
    assert quality.metrics is not None
    assert quality.metrics["surprise"] == pytest.approx(quality.loss, rel=1e-5)
    assert 1 >= quality.metrics["top5"] > (quality.accuracy or 0)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["client_accuracy"] == dict(quality.clients)
    assert summary["metrics"] == quality.metrics
    assert list(RoundLog(out / "rounds.jsonl"))[-1].quality == quality
    plain = run(small(rounds=2), out=out.with_name("plain"))
    assert plain.records[-1].quality.clients is None
    assert (plain.summary["sha256"], plain.summary["final_accuracy"]) == (summary["sha256"], summary["final_accuracy"])
    report([out], out_file=out / "page.html")
    assert 'id="clients-heading"' in (out / "page.html").read_text()


def test_some_clients_are_drawn_once_and_their_pieces_are_added_up(out: Path) -> None:
    result = run(small(rounds=1, evaluation={"clients": 3}), out=out)
    assert result.records[0].quality.clients is not None
    pieces = [Piece(0, 0, 2), Piece(0, 0, 2, client=4), Piece(0, 2, 4, client=4), Piece(0, 0, 4, client=7)]
    found = client_quality(pieces, [Score(0, 0, 2), Score(2, 0, 2), Score(1, 0, 2), Score(1, 0, 4)])
    assert found is not None
    assert (found.mean, found.worst_tenth, found.deviation) == (0.5, 0.25, 0.25)


def test_a_metric_is_checked_before_the_run(out: Path) -> None:
    with pytest.raises(ConfigError, match=r'evaluation\.metrics = "top6" is unknown; did you mean top5'):
        run(small(evaluation={"metrics": ["top6"]}), out=out)
    with pytest.raises(ConfigError, match="return one number per sample"):
        run(small(evaluation={"metrics": [lambda outputs, targets: outputs.mean()]}), out=out)
    assert not out.exists()


def test_a_run_ends_at_the_target_accuracy_or_when_patience_runs_out(tmp_path: Path) -> None:
    whole = run(small(rounds=8), out=tmp_path / "whole")
    accuracies = [record.quality.accuracy or 0 for record in whole.records]
    target = accuracies[2]
    end = next(k for k, accuracy in enumerate(accuracies) if accuracy >= target) + 1
    stopped = run(small(rounds=8, budget={"target_accuracy": target}), out=tmp_path / "target")
    assert [record.quality.accuracy for record in stopped.records] == accuracies[:end]
    again = run(small(rounds=8, budget={"target_accuracy": target}), out=tmp_path / "target", resume=True)
    assert (len(again.records), again.summary["sha256"]) == (end, stopped.summary["sha256"])
    assert stopped.summary["ended_by"].startswith("budget.target_accuracy = ")
    still = small(rounds=8, algorithm={"name": "fedbcgd+", "lr": 1e-12}, budget={"patience": 2})
    assert len(run(still, out=tmp_path / "patience").records) == 3
    assert whole.summary["ended_by"] is None


def test_an_early_end_is_explained_and_saved_so_that_the_run_can_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run(small(rounds=5), out=tmp_path / "whole")
    highest = whole.records[2].quality.accuracy
    stopped = run(small(rounds=5, budget={"target_accuracy": highest}), out=tmp_path / "run")
    end = len(stopped.records)
    assert end < 5
    assert f"ended after {end} rounds by budget.target_accuracy" in capsys.readouterr().err
    assert (tmp_path / "run" / "checkpoints" / f"round-{end:06d}").exists()
    assert run(small(rounds=5), out=tmp_path / "run", resume=True).summary["sha256"] == whole.summary["sha256"]
    for name, limit in {"upload_d": 0.1, "patience": 2}.items():
        config = small(rounds=8, algorithm={"name": "fedbcgd+", "lr": 1e-12}, budget={name: limit})
        summary = run(config, out=tmp_path / name).summary
        assert summary["ended_by"].startswith(f"budget.{name} = {limit}")
        assert (tmp_path / name / "checkpoints" / f"round-{summary['rounds']:06d}").exists()
        console = Console(file=io.StringIO(), width=80)
        console.print(run_table("FedBCGD+", summary, tmp_path))
        assert f"budget.{name} = {limit}" in console.file.getvalue()  # type: ignore[attr-defined]


def test_every_limit_that_ended_a_run_is_named_with_the_value_to_exceed(out: Path) -> None:
    done = run(small(rounds=3, algorithm={"name": "fedavg", "lr": 1e-12}), out=out)
    accuracy, upload = done.summary["final_accuracy"], done.summary["upload_bytes"]
    for rounds, budget, limits in (
        (3, {}, "rounds above 3"),
        (9, {"upload_d": 2.9999}, "budget.upload_d above 3"),
        (9, {"upload_bytes": 7, "patience": 1}, f"budget.upload_bytes above {upload} and budget.patience above 2"),
    ):
        assert limits_to_raise(small(rounds=rounds, budget=budget), done.records) == limits
    config = small(rounds=9, budget={"target_accuracy": accuracy / 2})
    name, above = limits_to_raise(config, done.records).split(" above ")
    assert name == "budget.target_accuracy"
    assert accuracy <= float(above) < accuracy + 1e-4
    assert ended_by(small(rounds=9, budget={"target_accuracy": float(above) + 1e-4}), done.records) is None


def test_the_time_of_an_evaluation_in_one_process_is_recorded(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = ClientHost.evaluate

    def slow(self: ClientHost, *arguments: Any) -> list[Score]:
        time.sleep(0.2)
        return evaluate(self, *arguments)

    monkeypatch.setattr(ClientHost, "evaluate", slow)
    for record in run(small(rounds=2), out=out).records:
        assert record.timing.stage_seconds["evaluate"] >= 0.2
        assert record.timing.seconds >= 0.2
