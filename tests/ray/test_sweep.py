"""A small grid with Ray Tune, on a real cluster."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raybcgd import ConfigError, run
from raybcgd.cli import app
from raybcgd.config import load_config
from raybcgd.sweep import parse_grid
from tests.conftest import small
from tests.ray.conftest import start_cluster, stop_cluster


@pytest.mark.ray
def test_a_grid_runs_every_point_and_writes_the_best_config(tmp_path: Path) -> None:
    config = small(engine="ray", rounds=2, algorithm={"name": "fedbcgd", "lr": 0.05}, compare={"target": 0.2})
    (tmp_path / "base.toml").write_text(config.to_toml())
    grid = ["--grid", "algorithm.lr=0.05,1e30", "--grid", "algorithm.momentum=0.0,0.5"]
    cluster = start_cluster({"num_cpus": 2})
    try:
        command = ["sweep", str(tmp_path / "base.toml"), *grid, "--out", str(tmp_path / "sweep")]
        result = CliRunner().invoke(app, command)
    finally:
        stop_cluster(cluster)
    assert result.exit_code == 0, result.output
    assert result.output.count("failed") == 2, "a step size of 1e30 diverges, and the sweep continues"
    points = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["points"]
    assert [(p["algorithm.lr"], p["algorithm.momentum"]) for p in points] == [
        (0.05, 0.0),
        (0.05, 0.5),
        (1e30, 0.0),
        (1e30, 0.5),
    ]
    assert [p["error"] is None for p in points] == [True, True, False, False]
    assert "diverged" in points[2]["error"]
    best = load_config(tmp_path / "sweep" / "best.toml")
    winner = max(points[:2], key=lambda p: p["last_tenth_accuracy"])
    assert (best.algorithm.lr, best.algorithm.momentum) == (winner["algorithm.lr"], winner["algorithm.momentum"])
    assert best.engine == "ray"
    assert best.compare == config.compare
    again = run(best.model_copy(update={"engine": "local"}), out=tmp_path / "again")
    assert again.summary["sha256"] == winner["sha256"], "the best config reproduces the weights of the sweep"


def test_a_grid_is_read_as_toml_values() -> None:
    grid = parse_grid(["algorithm.lr=0.01, 0.03", "algorithm.name=fedavg,fedbcgd+", "model.options.hidden=[8],[8, 8]"])
    assert grid == {
        "algorithm.lr": [0.01, 0.03],
        "algorithm.name": ["fedavg", "fedbcgd+"],
        "model.options.hidden": [[8], [8, 8]],
    }


@pytest.mark.parametrize("text", ["algorithm.lr", "algorithm.lr=", "=1,2"])
def test_an_invalid_grid_gives_the_expected_format(text: str) -> None:
    with pytest.raises(ConfigError, match="write it as key=value,value"):
        parse_grid([text])
