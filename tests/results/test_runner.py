"""The runner of `make results`: tuning on validation data, one entry per run, resume after an interruption."""

import time
from pathlib import Path

import pytest

from raybcgd.report.settings import TrackConfig
from results import runner as runner_module
from results.runner import OutOfTime, Runner, run_key
from results.store import Store, best
from results.studies import Study
from tests.conftest import small

CONFIG = """
rounds = 4
engine = "local"
[data]
source = "digits"
validation_share = 0.2
[data.partition]
clients = 6
[model]
options.hidden = [8]
[blocks]
count = 1
[algorithm]
momentum = 0.8
[local]
epochs = 1
stack = 0
[cohort]
clients_per_round = 2
[metrics]
enabled = false
[compare]
[[compare.variants]]
label = "FedAvg"
algorithm = { name = "fedavg" }
[[compare.variants]]
label = "FedAvgM"
algorithm = { name = "fedavgm" }
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    (tmp_path / "digits.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return Study(name="digits", config=str(tmp_path / "digits.toml"), seeds=(3, 5), tune_rounds=2, rates=(0.03, 0.1))


def test_a_study_tunes_on_validation_data_and_continues_after_an_interruption(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    one = Runner(study, Store("digits", tmp_path), {}, seen.append)
    one.run(1)
    assert len(seen) == one.total(1) == 2 * (2 + 2 + 1)
    store = Store("digits", tmp_path)
    for label in ("FedAvg", "FedAvgM"):
        points, (final,) = store.of("tune", label), store.of("final", label)
        chosen = best(points)
        assert chosen is not None
        assert chosen["score"] == max(run["score"] for run in points if run["score"] is not None)
        assert {run["settings"]["data.evaluate_on"] for run in points} == {"validation"}
        assert final["settings"]["algorithm.lr"] == chosen["point"]["algorithm.lr"]
        assert (final["rounds"], final["seed"], len(final["curve"]["accuracy"])) == (4, 3, 4)
    assert {tuple(run["point"]) for run in store.of("tune", "FedAvg")} == {("algorithm.lr",)}
    assert ("algorithm.lr", "algorithm.momentum") in {tuple(run["point"]) for run in store.of("tune", "FedAvgM")}
    with pytest.raises(OutOfTime):
        Runner(study, Store("digits", tmp_path), {}, deadline=time.monotonic() - 1).run(2)
    made: list[int] = []
    original = runner_module.run
    monkeypatch.setattr(
        runner_module, "run", lambda config, **more: (made.append(config.seed), original(config, **more))[1]
    )
    Runner(study, Store("digits", tmp_path), {}).run(2)
    assert made == [5, 5], "only the second seed was missing"
    other = Study(name="other", config=study.config, seeds=(5,), tune_rounds=2, rates=study.rates)
    Runner(other, Store("other", tmp_path), {}).run(1)
    assert made == [5, 5], "a run of another study is not repeated"
    assert not list((tmp_path / "runs" / "results").iterdir())


def test_a_diverging_point_loses_and_is_stored(study: Study, tmp_path: Path) -> None:
    only_fedavg = CONFIG[: CONFIG.index('[[compare.variants]]\nlabel = "FedAvgM"')]
    Path(study.config).write_text(only_fedavg.replace('"fedavg" }', '"fedavg", weight_decay = 1e30 }'))
    Runner(study, Store("digits", tmp_path), {}).run(1)
    store = Store("digits", tmp_path)
    assert all("diverged" in run["error"] for run in store.of("tune", "FedAvg"))
    assert best(store.of("tune", "FedAvg")) is None


def test_tracking_a_run_does_not_change_its_key() -> None:
    config = small()
    tracked = config.model_copy(update={"track": TrackConfig(tensorboard=True)})
    assert run_key(tracked) == run_key(config)
