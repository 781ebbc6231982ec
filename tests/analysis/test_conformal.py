"""Conformal prediction sets: their coverage and their size."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raybcgd import ConfigError, run
from raybcgd.analysis.analyst import analyse_run
from raybcgd.analysis.conformal import conformal, probabilities_of, threshold
from raybcgd.config import load_config
from raybcgd.problem import prepare
from tests.conftest import small


@given(
    scores=st.lists(st.floats(0, 1), min_size=1, max_size=60),
    level=st.floats(0.01, 0.99),
)
def test_enough_calibration_samples_are_within_the_threshold(scores: list[float], level: float) -> None:
    limit, n = threshold(np.array(scores), level), len(scores)
    within = sum(score <= limit for score in scores)
    wanted = math.ceil((n + 1) * level)
    assert within >= min(wanted, n)
    if wanted > n:
        assert limit == 1.0
    else:
        assert sum(score < limit for score in scores) < wanted, "the threshold is the smallest such score"


def synthetic(samples: int, rng: np.random.Generator, skill: float) -> tuple[Any, Any]:
    targets = rng.integers(0, 5, samples)
    logits = rng.standard_normal((samples, 5))
    logits[np.arange(samples), targets] += skill
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), targets


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_coverage_is_the_level_on_average_over_splits(level: float) -> None:
    """It is between level and level + 1/(n + 1), however good the model is."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        probabilities, targets = synthetic(400, rng, 1.5)
        calibration = np.zeros(400, dtype=bool)
        calibration[rng.permutation(400)[:99]] = True
        found.append(conformal(probabilities, targets, calibration, level).coverage)
    error = np.std(found) / math.sqrt(len(found))
    assert level - 4 * error <= np.mean(found) <= level + 0.01 + 4 * error


def test_better_models_and_lower_levels_have_smaller_sets() -> None:
    rng = np.random.default_rng(0)
    calibration = np.arange(4000) % 2 == 0
    good, bad = (synthetic(4000, rng, skill) for skill in (4.0, 0.5))
    assert conformal(*good, calibration, 0.9).mean_size < conformal(*bad, calibration, 0.9).mean_size - 1
    assert conformal(*bad, calibration, 0.5).mean_size < conformal(*bad, calibration, 0.9).mean_size
    everything = conformal(*bad, np.arange(4000) == 0, 0.9)
    assert (everything.coverage, everything.mean_size) == (1.0, 5.0), "one calibration sample is too few"


def test_a_single_output_is_the_logit_of_label_one() -> None:
    outputs = torch.tensor([[0.0], [100.0], [-100.0]])
    assert torch.allclose(probabilities_of(outputs), torch.tensor([[0.5, 0.5], [0.0, 1.0], [1.0, 0.0]]))
    assert torch.allclose(probabilities_of(torch.zeros(2, 4)), torch.full((2, 4), 0.25))


def test_a_run_is_analysed_at_its_end_if_the_config_says_so(tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = small(
        rounds=10, analysis={"conformal_levels": [0.6, 0.85], "cka_clients": 3}, algorithm={"name": "fedavg", "lr": 0.3}
    )
    summary = run(config, out=out).summary
    assert json.loads((out / "summary.json").read_text())["analysis"] == summary["analysis"]
    assert summary["analysis"] == analyse_run(out)
    low, high = summary["analysis"]["conformal"]
    for level, sets in ((0.6, low), (0.85, high)):
        assert sets["level"] == level
        assert sets["samples"] + sets["calibration_samples"] == len(prepare(config)[1].dataset.test.targets)
        assert sets["coverage"] == pytest.approx(level, abs=0.1)
    assert low["mean_size"] < high["mean_size"] <= 10
    assert list(summary["analysis"]["cka"]) == [layer.name for layer in prepare(config)[0].layout.order]
    assert load_config(out / "config.toml") == config


def test_each_data_phase_is_evaluated_with_its_own_model(tmp_path: Path) -> None:
    phases = {"data": {"partition": {"clients": 20}, "phases": {"count": 2, "rounds_per_phase": 4}}}
    runs = {
        name: run(
            small(rounds=16, algorithm={"name": name, "lr": 0.2}, analysis={}, **phases), out=tmp_path / name
        ).summary["analysis"]["conformal"][0]
        for name in ("fedavg", "mm_psgd")
    }
    assert runs["mm_psgd"]["mean_size"] < runs["fedavg"]["mean_size"]
    assert all(sets["coverage"] > 0.8 for sets in runs.values())


def test_analysis_needs_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.every = 0"):
        prepare(small(analysis={}, checkpoint={"every": 0}))
    run(small(rounds=1, checkpoint={"every": 0}), out=tmp_path / "run")
    with pytest.raises(ConfigError, match="no checkpoint to analyse"):
        analyse_run(tmp_path / "run")
