"""Budgets: a run ends with the round that reaches the limit, also after a resume, and comparisons share it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from raybcgd import ConfigError, run
from raybcgd.algorithms import FedBCGD
from raybcgd.compare.comparison import compare
from raybcgd.config import make_config
from raybcgd.model.blocks import divide
from raybcgd.model.settings import BlocksConfig, ModelConfig
from raybcgd.model.zoo import build
from raybcgd.problem import prepare
from raybcgd.server.budget import expected_rounds
from raybcgd.wire.codecs import Raw
from raybcgd.wire.upload import Wire
from tests.conftest import small

LINKS = {"cohort": {"links": {"median": 1e4}}}


@pytest.mark.parametrize("budget", [{"upload_d": 3}, {"upload_d": 2.5}])
def test_a_run_ends_with_the_round_that_reaches_the_upload(tmp_path: Path, budget: dict[str, Any]) -> None:
    config = small(rounds=50, budget=budget, algorithm={"name": "fedavg"}, evaluation={"every": 20})
    result = run(config, out=tmp_path / "run")
    assert len(result.records) == 3 == expected_rounds(prepare(config)[0])
    assert result.summary["upload_d_total"] == 3
    assert [record.quality.accuracy is not None for record in result.records] == [False, False, True]
    assert (tmp_path / "run" / "checkpoints" / "round-000003").exists(), "the last round is saved"


def test_rounding_errors_do_not_cost_another_round(tmp_path: Path) -> None:
    config = small(rounds=50, algorithm={"name": "fedbcgd"})
    per_round = run(small(rounds=1, algorithm={"name": "fedbcgd"}), out=tmp_path / "one").summary["upload_d_total"]
    config = make_config({**config.model_dump(), "budget": {"upload_d": 7 * per_round}})
    assert sum([per_round] * 7) != 7 * per_round, "the test needs a rounding error"
    assert len(run(config, out=tmp_path / "run").records) == 7 == expected_rounds(prepare(config)[0])


def test_bytes_and_simulated_time_end_a_run(tmp_path: Path) -> None:
    whole = run(small(rounds=6, **LINKS), out=tmp_path / "whole")
    for name in ("upload_bytes", "simulated_seconds"):
        spent = [getattr(record.traffic, name) for record in whole.records]
        limit = sum(spent[:4]) + 1
        cut = run(small(rounds=6, budget={name: limit}, **LINKS), out=tmp_path / name)
        assert len(cut.records) == 5
        assert sum(spent[:4]) < limit <= cut.summary[name]


def test_a_resumed_run_counts_what_it_spent_before(tmp_path: Path) -> None:
    budget = {"upload_bytes": 400_000}
    whole = run(small(rounds=60, budget=budget), out=tmp_path / "whole")
    assert 4 < len(whole.records) < 60
    run(small(rounds=4, budget=budget), out=tmp_path / "parts")
    parts = run(small(rounds=60, budget=budget), out=tmp_path / "parts", resume=True)
    assert len(parts.records) == len(whole.records)
    assert parts.summary["sha256"] == whole.summary["sha256"]
    more = run(small(rounds=len(whole.records) + 1), out=tmp_path / "parts", resume=True)
    assert len(more.records) == len(whole.records) + 1, "a budget may change on resume"


def test_a_comparison_gives_every_method_the_same_budget(tmp_path: Path) -> None:
    variants = [
        {"algorithm": {"name": "fedavg"}},
        {"algorithm": {"name": "fedbcgd"}},
        {"label": "FedPAQ", "algorithm": {"name": "fedavg"}, "wire": {"codec": "qsgd", "levels": 7}},
    ]
    config = small(rounds=100, budget={"upload_d": 4}, compare={"variants": variants})
    result = compare(config, out=tmp_path / "run")
    rounds = {line.label: line.rounds for line in result.standings}
    assert rounds["FedAvg"] == 4
    assert rounds["FedBCGD"] > 8
    assert rounds["FedPAQ"] > 16
    for line in result.standings:
        assert 4 <= line.upload_d_total < 4 + line.upload_d_per_round
        parameters = prepare(config)[0].layout.size
        assert line.upload_bytes == pytest.approx(4 * parameters * 6 * line.upload_d_total)
    table = (tmp_path / "run" / "comparison.md").read_text()
    assert all(heading in table for heading in ("d total", "floats total", "bytes total"))


def test_simulated_time_needs_links() -> None:
    with pytest.raises(ConfigError, match=r"budget\.simulated_seconds needs .* \[cohort\.links\]"):
        prepare(small(budget={"simulated_seconds": 1.0}))
    with pytest.raises(ConfigError, match=r"budget\.upload_d = 0"):
        small(budget={"upload_d": 0})


ROUNDS = {
    ("lenet5", 10, 1000): 4952,
    ("lenet5", 100, 1000): 4568,
    ("vgg11", 10, 1000): 4983,
    ("vgg11", 100, 1000): 4841,
    ("vgg19", 10, 1000): 4998,
    ("vgg19", 100, 1000): 4976,
    ("resnet18", 10, 1000): 4991,
    ("resnet18", 100, 1000): 4910,
    ("vit_b_16", 100, 100): 597,
    ("vit_b_16", 200, 100): 595,
}
"""Rounds that FedBCGD needs for a budget in d: (model, classes, budget) -> rounds, from the paper's divisions."""


@pytest.mark.parametrize(("case", "rounds"), ROUNDS.items(), ids=str)
def test_fedbcgd_affords_the_rounds_of_the_paper(case: tuple[str, int, int], rounds: int) -> None:
    model, classes, budget = case
    with torch.device("meta"):
        module = build(ModelConfig(name=model), (3, 32, 32), classes, seed=0)
    division = "lenet5-paper" if model == "lenet5" else model
    wire = Wire(FedBCGD(), divide(module, BlocksConfig(division=division)), Raw(), torch.float32)
    blocks = range(len(wire.layout.blocks))
    upload_d = sum(wire.upload(block).bytes for block in blocks) / len(blocks) / (4 * wire.layout.size)
    assert round(budget / upload_d) == rounds
