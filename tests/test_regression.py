"""Regression: float targets, without an accuracy anywhere."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

from raybcgd import Config, ConfigError, Dataset, Run, run
from raybcgd.cli import app
from raybcgd.compare import compare
from raybcgd.report.progress import Display, parse_line
from raybcgd.report.tables import comparison_table, run_table

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 4)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.05 * RNG.normal(size=300)).astype(np.float32)
DATA = Dataset.from_tensors(X[:240], Y[:240], X[240:], Y[240:], name="plane")


def config(**changes: Any) -> Config:
    tables: dict[str, Any] = {
        "rounds": 8,
        "engine": "local",
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "data": {"partition": {"kind": "dirichlet", "clients": 6}},
        "model": {"name": "mlp", "loss": "mse", "options": {"hidden": [8]}},
        "metrics": {"enabled": False},
    }
    return Config(**{**tables, **changes})


def text_of(renderable: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(config(), dataset=DATA, out=tmp_path_factory.mktemp("r") / "run", progress=False)


def test_the_record_has_losses_and_the_root_mean_squared_error_but_no_accuracy(result: Any) -> None:
    last = result.records[-1].quality
    assert last.accuracy is None
    outputs = result.model(torch.from_numpy(X[240:])).detach().reshape(-1).numpy()
    assert last.loss == pytest.approx(float(((outputs - Y[240:]) ** 2).mean()), rel=1e-5)
    assert last.metrics["rmse"] == pytest.approx(last.loss**0.5, rel=1e-5)
    assert result.records[-1].quality.loss < result.records[0].quality.loss / 3, "it learns"
    assert result.summary["final_accuracy"] is None
    assert result.summary["best_loss"] == min(record.quality.loss for record in result.records)


def test_nothing_that_people_read_mentions_an_accuracy(result: Any, tmp_path: Path) -> None:
    table = text_of(run_table("FedAvg", result.summary, result.folder))
    assert "accuracy" not in table
    assert "rmse" in table
    assert f"loss {result.summary['final_loss']:.4g}" in repr(result)
    page = tmp_path / "report.html"
    made = CliRunner().invoke(app, ["report", str(result.folder), "--out", str(page)])
    assert made.exit_code == 0, made.output
    html = page.read_text()
    body = html[html.index("<body>") :]
    assert "accuracy" not in body.lower().replace("target_accuracy", "")
    assert "90 %" not in body
    assert "final loss" in body
    assert "<th>last tenth</th>" in body
    assert "Loss against rounds, and against the floats and bytes uploaded by all clients. It is measured on" in body
    assert "bands" not in body
    assert "accuracy" not in Run.open(result.folder).figures()
    assert json.loads((result.folder / "partition.json").read_text())["label"] == "decile of the targets"


def test_progress_shows_the_loss(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100)
    run(config(rounds=2), dataset=DATA, out=tmp_path / "run", progress=Display(console))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "accuracy" not in shown
    line = next(found for text in shown.splitlines() if (found := parse_line(text)) is not None)
    assert line.accuracy is None
    assert line.loss is not None


def test_a_comparison_falls_back_to_the_loss(tmp_path: Path) -> None:
    found = compare(
        config(rounds=3), algorithms=["fedavg", "fedprox"], dataset=DATA, out=tmp_path / "c", progress=False
    )
    shown = text_of(comparison_table(found.standings, found.target, 200))
    assert shown.startswith("Loss")
    assert "90 %" not in shown
    assert f"{found.standings[0].best_loss:.4g}" in shown
    assert "90 %" not in repr(found)
    assert (tmp_path / "c" / "comparison.png").stat().st_size > 10_000
    made = CliRunner().invoke(app, ["report", str(tmp_path / "c")])
    assert made.exit_code == 0, made.output


def test_stacks_and_single_clients_agree(tmp_path: Path) -> None:
    models = []
    for stack in (0, 4):
        changed = config(rounds=2, local={"stack": stack}, model={"name": "mlp", "loss": "l1", "dtype": "float64"})
        models.append(run(changed, dataset=DATA, out=tmp_path / str(stack), progress=False).model)
    for one, many in zip(*(model.state_dict().values() for model in models), strict=True):
        assert torch.allclose(one, many, rtol=0, atol=1e-12)


def test_patience_stops_when_the_loss_no_longer_falls(tmp_path: Path) -> None:
    found = run(
        config(rounds=50, algorithm={"name": "fedavg", "lr": 1e-12}, budget={"patience": 2}),
        dataset=DATA,
        out=tmp_path / "run",
        progress=False,
    )
    assert len(found.records) < 10


def test_a_task_of_regression_turns_labels_into_numbers(tmp_path: Path) -> None:
    found = run(config(data={"task": "regression"}, rounds=1), out=tmp_path / "run", progress=False)
    assert found.summary["final_accuracy"] is None
    shown = CliRunner().invoke(app, ["data", "inspect", str(found.folder / "config.toml")])
    assert "numbers, for regression: 0 to 9" in shown.output
    assert "deciles of targets per client" in shown.output


class Two(nn.Linear):
    """Returns two numbers per sample."""

    def __init__(self) -> None:
        super().__init__(4, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"loss": "cross_entropy"}}, 'model.loss = "cross_entropy" needs labels, but the targets are floats'),
        ({"budget": {"target_accuracy": 0.9}}, "budget.target_accuracy needs labels, .*; remove it$"),
        ({"evaluation": {"clients": 3}}, "evaluation.clients needs labels, .*; remove it, or set it to 0$"),
        ({"evaluation": {"metrics": ["top5"]}}, 'evaluation.metrics: "top5" needs labels, but the targets are floats'),
        ({"analysis": {}}, r"analysis.conformal_levels needs labels, .*; set it to \[\]$"),
        ({"data": {"phases": {"count": 2}}}, "data.phases needs labels"),
        ({"data": {"task": "binary"}}, 'data.task = "binary" needs labels'),
    ],
)
def test_settings_that_need_labels_give_one_line(changes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        run(config(**changes), dataset=DATA, progress=False)
    assert "\n" not in str(caught.value)


def test_a_target_accuracy_is_refused(result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raybcgd.sweep import sweep

    monkeypatch.setattr("raybcgd.sweep.cluster", lambda address: pytest.fail("Ray starts"))
    aimed = config(compare={"target": 0.5})
    message = r"^compare.target needs labels, but the targets are floats \(regression\); remove it$"
    with pytest.raises(ConfigError, match=message):
        compare(aimed, dataset=DATA, out=tmp_path / "out", progress=False)
    with pytest.raises(ConfigError, match=message):
        sweep(aimed, {"algorithm.lr": [0.1, 0.2]}, dataset=DATA, out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
    page = tmp_path / "report.html"
    made = CliRunner().invoke(app, ["report", str(result.folder), "--target", "0.5", "--out", str(page)])
    assert made.exit_code == 2
    assert made.stderr == "error: --target 0.5 is an accuracy, but the runs have only losses (regression); remove it\n"
    assert not page.exists()


@pytest.mark.parametrize("metric", ["best_accuracy", "upload_d_to_target"])
def test_a_sweep_by_accuracy_is_refused_before_ray_starts(
    metric: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raybcgd.sweep import sweep

    monkeypatch.setattr("raybcgd.sweep.cluster", lambda address: pytest.fail("Ray starts"))
    message = f"^the metric {metric} needs labels, .* floats .*; use last_tenth_loss or best_loss$"
    with pytest.raises(ConfigError, match=message):
        sweep(
            config(),
            {"algorithm.lr": [0.1, 0.2]},
            metric=metric,
            dataset=DATA,
            out=tmp_path / "sweep",
            progress=False,
        )
    assert not (tmp_path / "sweep").exists()


def test_losses_and_outputs_that_do_not_fit_give_one_line() -> None:
    labels = Dataset.from_tensors(X[:240], Y[:240] > 0, X[240:], Y[240:] > 0)
    with pytest.raises(
        ConfigError, match=r'model.loss = "mse" needs float targets, but the data has 2 classes; set data'
    ):
        run(config(), dataset=labels, progress=False)
    with pytest.raises(ConfigError, match=r'model.loss = "mse" does not accept outputs of shape \(2,\) per sample'):
        run(config(), module=Two(), dataset=DATA, progress=False)
