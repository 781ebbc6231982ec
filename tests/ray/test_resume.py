"""A driver is killed at a random moment, and another one resumes from the last checkpoint."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raybcgd.experiment import run
from raybcgd.record.rounds import RoundLog
from tests.conftest import small
from tests.ray.drive import LOCAL
from tests.test_ctrl_c import remaining_processes

ROUNDS = 24


def start_driver(folder: Path, engine: str, mark: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.ray.drive", str(folder), str(ROUNDS), engine]
    env = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAYBCGD_TEST_MARK": mark}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True)


def rounds_done(folder: Path) -> int:
    log = folder / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def kill_after_some_rounds(process: subprocess.Popen[str], folder: Path, rng: random.Random) -> bool:
    """Kill the driver at a random moment after a few more rounds. Return False if it finished before that."""
    lowest, more = rounds_done(folder), rng.randint(1, 3)
    while process.poll() is None and (now := rounds_done(folder)) < lowest + more:
        lowest = min(lowest, now)  # a resumed run restarts at its checkpoint
        time.sleep(0.02)
    time.sleep(rng.uniform(0.0, 0.3))
    if process.poll() is not None:
        return False
    process.send_signal(signal.SIGKILL)
    process.wait()
    return True


def killed_and_resumed(folder: Path, engine: str, kills: int, seed: int) -> tuple[str, int]:
    """Kill several drivers, none of which leaves a process behind, and let the last one finish.

    Return its SHA-256 and how many were killed in time.
    """
    rng, killed = random.Random(seed), 0
    for _ in range(kills):
        mark = f"raybcgd-test-{time.time_ns()}"
        killed += kill_after_some_rounds(start_driver(folder, engine, mark), folder, rng)
        assert remaining_processes(mark, 15.0) == []  # Ray's own agents would stay for a minute or more
    last = start_driver(folder, engine)
    output, _ = last.communicate(timeout=300)
    assert last.returncode == 0
    return output.split()[-1], killed


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = small(rounds=ROUNDS, local=LOCAL, checkpoint={"every": 2})
    return str(run(config, out=tmp_path_factory.mktemp("local") / "run").summary["sha256"])


def check(folder: Path, expected: str, engine: str, kills: int) -> None:
    sha256, killed = killed_and_resumed(folder, engine, kills, seed=3)
    assert killed >= 1
    assert sha256 == expected
    assert [record.round for record in RoundLog(folder / "rounds.jsonl")] == list(range(ROUNDS))


@pytest.mark.slow
def test_a_run_resumes_after_its_local_driver_was_killed(out: Path, expected: str) -> None:
    check(out, expected, "local", kills=1)


@pytest.mark.ray
def test_a_run_resumes_after_its_ray_driver_was_killed(out: Path, expected: str) -> None:
    check(out, expected, "ray", kills=1)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_resumes_after_ten_drivers_were_killed_in_a_row(out: Path, expected: str) -> None:
    sha256, killed = killed_and_resumed(out, "ray", kills=10, seed=4)
    assert killed == 10
    assert sha256 == expected
    assert [record.round for record in RoundLog(out / "rounds.jsonl")] == list(range(ROUNDS))
