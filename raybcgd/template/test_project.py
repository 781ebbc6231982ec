"""Tests of the experiment: run `pytest` in this folder."""

from method import FedMemory

from raybcgd import load_config, run
from raybcgd.algorithms import FedAvg


def test_the_experiment_learns_and_gives_the_same_weights_again(tmp_path):
    config = load_config("config.toml", ["rounds=5"])
    first = run(config, out=tmp_path / "first", progress=False)
    again = run(config, out=tmp_path / "again", progress=False)
    assert first.summary["sha256"] == again.summary["sha256"]
    assert first.summary["final_accuracy"] > 0.5


def test_without_memory_the_method_is_fedavg(tmp_path):
    base = load_config("config.toml", ["rounds=2"])
    summaries = [
        run(base.model_copy(update={"algorithm": method}), out=tmp_path / method.name, progress=False).summary
        for method in (FedMemory(lr=0.1, beta=0), FedAvg(lr=0.1))
    ]
    assert summaries[0]["sha256"] == summaries[1]["sha256"]
