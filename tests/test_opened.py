"""Runs read back from their folders, as objects and as tables."""

from pathlib import Path

import pandas
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from raybcgd import ConfigError, Run, figures, run
from raybcgd.cli import app
from raybcgd.compare import compare
from tests.conftest import small


def test_a_run_is_read_back_with_its_curves_config_and_model(out: Path) -> None:
    result = run(small(rounds=3, evaluation={"every": 2, "clients": 2, "metrics": ["top5"]}), out=out)
    opened = Run.open(out)
    assert opened.records == result.records
    assert opened.summary is not None
    assert opened.summary["sha256"] == result.summary["sha256"]
    assert opened.config() == small(rounds=3, evaluation={"every": 2, "clients": 2, "metrics": ["top5"]})
    frame = opened.frame()
    pandas.testing.assert_frame_equal(frame, result.frame())
    assert list(frame["round"]) == [1, 2, 3]
    assert frame["upload_bytes"].sum() == result.summary["upload_bytes"]
    assert {"clients_worst_tenth", "metric_top5", "train_seconds"} <= set(frame)
    assert list(opened.curve().index) == [1, 2]
    with pytest.raises(ConfigError, match="accurcy is not measured; use one of round, accuracy"):
        opened.curve("accurcy")
    inputs = torch.rand(5, 1, 8, 8)
    assert torch.equal(opened.model().eval()(inputs), result.model.eval()(inputs))
    with pytest.raises(ConfigError, match="are not in this module"):
        opened.model(nn.Linear(2, 2))
    shown = figures([opened])
    assert {"accuracy", "loss", "clients"} <= set(shown)
    assert type(opened.figures()["accuracy"]).__name__ == "Figure"
    for text in (repr(opened), repr(result)):
        assert "3 rounds, accuracy" in text
        assert len(text) < 200
    with pytest.raises(ConfigError, match="holds no run"):
        Run.open(out.parent)


def test_a_module_of_ones_own_is_passed_again(out: Path) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))

    result = run(small(rounds=1, blocks={"count": 1}), module=net(), out=out)
    restored = Run.open(out).model(net())
    for name, value in result.model.state_dict().items():
        if value.is_floating_point():
            assert torch.equal(restored.state_dict()[name], value)


def test_export_writes_all_rounds_of_a_comparison(out: Path, tmp_path: Path) -> None:
    comparison = compare(small(rounds=2), algorithms=["fedavg", "fedbcgd"], out=out)
    assert repr(comparison).count("\n") == 4
    csv, parquet = tmp_path / "rounds.csv", tmp_path / "rounds.parquet"
    done = CliRunner().invoke(app, ["export", str(out), "--csv", str(csv), "--parquet", str(parquet)])
    assert done.exit_code == 0, done.output
    for table in (pandas.read_csv(csv), pandas.read_parquet(parquet)):
        assert list(table["run"]) == ["FedAvg", "FedAvg", "FedBCGD", "FedBCGD"]
        assert list(table["accuracy"]) == pytest.approx(
            [record.quality.accuracy for each in comparison.runs.values() for record in each.records]
        )
    assert CliRunner().invoke(app, ["export", str(out)]).exit_code == 2
