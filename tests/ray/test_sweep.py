"""A small grid with Ray Tune, on a real cluster."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.cluster_utils import Cluster
from typer.testing import CliRunner, Result

from raybcgd import ConfigError, Dataset, run
from raybcgd.cli import app
from raybcgd.config import Config, load_config
from raybcgd.sweep import parse_grid
from raybcgd.sweep import sweep as run_sweep
from tests.conftest import ONE_BY_ONE, small
from tests.ray.conftest import Clusters


@pytest.fixture(scope="module")
def cluster(clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two CPUs and a logical GPU. The workers inherit MARK_OF_DEATH."""
    os.environ["MARK_OF_DEATH"] = str(tmp_path_factory.mktemp("mark") / "died")
    yield clusters.get({"num_cpus": 2, "num_gpus": 1})
    clusters.stop()
    del os.environ["MARK_OF_DEATH"]


@pytest.fixture
def port_in_use() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def sweep(config: Config, folder: Path, *arguments: str) -> Result:
    folder.mkdir(exist_ok=True)
    (folder / "base.toml").write_text(config.to_toml())
    return CliRunner().invoke(app, ["sweep", str(folder / "base.toml"), "--out", str(folder / "sweep"), *arguments])


def points(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "sweep/sweep.json").read_text())["points"]
    return found


@pytest.mark.ray
def test_a_point_that_fails_for_another_reason_than_its_settings_fails_the_sweep_and_runs_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The second point cannot serve its metrics on an address of another machine."""
    config = small(engine="ray", rounds=2, local=ONE_BY_ONE, hosts={"device": "cpu"})
    done = sweep(config, tmp_path, "--grid", "metrics.host=127.0.0.1,192.0.2.1")
    assert done.exit_code == 1
    (line,) = [line for line in done.output.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: 1 of 2 points failed, for example host = 192.0.2.1: metrics.host")
    assert line.endswith(f"repeat the command with --out {tmp_path}/sweep --resume auto to run only the failed points")
    assert not (tmp_path / "sweep/best.toml").exists()
    finished = (tmp_path / "sweep/000/summary.json").stat().st_mtime_ns
    before = points(tmp_path)[0]
    assert not [name for name, value in before.items() if value in ("", [])], "every field says something"
    done = sweep(config, tmp_path, "--grid", "metrics.host=127.0.0.1,127.0.0.2", "--resume", "auto")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "sweep/000/summary.json").stat().st_mtime_ns == finished, "a finished point is read"
    assert (tmp_path / "sweep/best.toml").exists()
    first, second = points(tmp_path)
    assert (first, second["sha256"]) == (before, before["sha256"])


@pytest.mark.ray
def test_a_point_that_is_lost_with_its_process_starts_again(cluster: Cluster, tmp_path: Path) -> None:
    loss = "tests.ray.misbehaving:loss_that_dies_once"
    config = small(engine="ray", rounds=2, local=ONE_BY_ONE, model={"loss": loss}, hosts={"device": "cpu"})
    done = sweep(config, tmp_path, "--grid", "algorithm.lr=0.05,0.1")
    assert done.exit_code == 0, done.output
    assert Path(os.environ["MARK_OF_DEATH"]).exists()
    assert [point["error"] for point in points(tmp_path)] == [None, None]


@pytest.mark.slow
@pytest.mark.ray
def test_a_sweep_uses_logical_gpus_only_if_a_run_does(cluster: Cluster, tmp_path: Path) -> None:
    config = small(engine="ray", rounds=2, local=ONE_BY_ONE, hosts={"num_gpus": 0.5, "logical_gpus": True})
    done = sweep(config, tmp_path / "logical", "--grid", "algorithm.lr=0.05,0.1")
    assert done.exit_code == 0, done.output
    config = small(engine="ray", rounds=2, local=ONE_BY_ONE, hosts={"num_gpus": 0.5})
    done = sweep(config, tmp_path / "real", "--grid", "algorithm.lr=0.05")
    assert done.exit_code == 1
    assert "a trial was granted a GPU, but torch" in done.output


@pytest.mark.ray
def test_a_grid_runs_every_point_and_writes_the_best_config(cluster: Cluster, tmp_path: Path, port_in_use: int) -> None:
    """All points want the same port for their metrics, which is in use."""
    config = small(
        engine="ray",
        rounds=2,
        local=ONE_BY_ONE,
        algorithm={"name": "fedbcgd", "lr": 0.05},
        compare={"target": 0.2},
        hosts={"device": "cpu"},
        metrics={"port": port_in_use},
    )
    (tmp_path / "base.toml").write_text(config.to_toml())
    grid = ["--grid", "algorithm.lr=0.05,1e30", "--grid", "algorithm.momentum=0.0,0.5"]
    command = ["sweep", str(tmp_path / "base.toml"), *grid, "--out", str(tmp_path / "sweep")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert result.output.count("failed") == 2, "a step size of 1e30 diverges, and the sweep continues"
    found = points(tmp_path)
    assert [(p["algorithm.lr"], p["algorithm.momentum"]) for p in found] == [
        (0.05, 0.0),
        (0.05, 0.5),
        (1e30, 0.0),
        (1e30, 0.5),
    ]
    assert [p["error"] is None for p in found] == [True, True, False, False]
    assert "diverged" in found[2]["error"]
    best = load_config(tmp_path / "sweep" / "best.toml")
    winner = max(found[:2], key=lambda p: p["last_tenth_accuracy"])
    assert (best.algorithm.lr, best.algorithm.momentum) == (winner["algorithm.lr"], winner["algorithm.momentum"])
    assert best.engine == "ray"
    assert best.compare == config.compare
    assert (best.data.evaluate_on, best.data.validation_share) == ("test", 0), "train best.toml uses all data"
    held_out = best.data.model_copy(update={"evaluate_on": "validation", "validation_share": 0.1})
    again = run(best.model_copy(update={"engine": "local", "data": held_out}), out=tmp_path / "again")
    assert again.summary["sha256"] == winner["sha256"], "the best config reproduces the weights of the sweep"
    assert "10 % of the training samples held out for validation" in " ".join(result.output.split())
    assert "test data was not used" in result.output


@pytest.mark.slow
@pytest.mark.ray
def test_the_sweep_of_the_page_about_python_runs(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the device differs: the cluster has a logical GPU."""
    page = (Path(__file__).parents[2] / "docs/api/index.md").read_text()
    code = page.split("## Sweep over settings")[1].split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    on_cpu = code.replace("rounds=4", 'rounds=4, hosts={"device": "cpu"}')
    exec(compile(on_cpu, "index.md", "exec"), scope)
    assert len(scope["found"].points) == 4
    assert scope["final"].runs["FedBCGD"].summary["rounds"] == 4


@pytest.mark.ray
def test_a_sweep_chooses_on_validation_data_even_if_the_test_data_says_otherwise(
    cluster: Cluster, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    wrong_test = Dataset.from_tensors(x, y, x[:100], 1 - y[:100])
    method = {"name": "fedavg"}
    base = small(engine="ray", rounds=3, algorithm=method, data={"validation_share": 0.25}, hosts={"device": "cpu"})
    grid = {"algorithm.lr": [1e-6, 0.3]}
    clients = np.arange(400) % 12
    found = run_sweep(base, grid, dataset=wrong_test, partition=clients, out=tmp_path / "sweep", progress=False)
    assert json.loads((tmp_path / "sweep/000/partition.json").read_text())["clients"] == 12
    assert found.best.settings == {"algorithm.lr": 0.3}, "on the test data, learning nothing would win"
    assert found.best.results["best_accuracy"] > 0.7
    assert found.validation_share == 0.25


@pytest.mark.parametrize(
    ("grid", "settings", "says"),
    [
        ("0.05,0.1,0.2", "rounds=2", None),
        ("0.2,0.1", "rounds=1", "algorithm.lr = 0.05 in 000, 0.2 now"),
        ("0.05,0.1", "local.batch_size=10", "local.batch_size = 20 in 000, 10 now"),
        ("0.05", "rounds=1", "which has more points than this one"),
    ],
)
def test_a_sweep_over_another_grid_is_refused_before_ray_starts(
    grid: str, settings: str, says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(rounds=1, data={"validation_share": 0.1, "evaluate_on": "validation"})
    for number, lr in enumerate((0.05, 0.1)):
        algorithm = config.algorithm.model_copy(update={"lr": lr})
        run(config.model_copy(update={"algorithm": algorithm}), out=tmp_path / f"sweep/{number:03d}", progress=False)

    def start(address: str | None) -> Any:
        raise ConfigError("Ray starts")

    monkeypatch.setattr("raybcgd.sweep.cluster", start)
    done = sweep(config, tmp_path, "--grid", f"algorithm.lr={grid}", "--set", settings, "--resume", "auto")
    assert done.exit_code == 2
    if says is None:
        assert done.stderr == "error: Ray starts\n"
    else:
        assert done.stderr.startswith(f"error: {tmp_path}/sweep holds a sweep over another grid")
        assert says in done.stderr
        assert done.stderr.endswith("choose another --out, or delete that folder\n")


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
