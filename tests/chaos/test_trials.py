"""Runs that are killed, stopped, terminated and starved of disk space at random moments end with the same weights."""

from pathlib import Path

import pytest

from tests.chaos.__main__ import SEED, TRIALS, run_trials
from tests.chaos.table import read_results, recovery_table


@pytest.mark.slow
@pytest.mark.timeout(2 * 3600)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_disturbed_runs_end_with_the_same_weights(tmp_path: Path) -> None:
    results = tmp_path / "chaos.jsonl"
    faults = run_trials(0, TRIALS, SEED, results)
    print(recovery_table(read_results(results)))
    assert faults == []
