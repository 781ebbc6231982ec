"""A run on its own local Ray: it goes on after the death of Ray's vital processes, and leaves none behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from raybcgd.engine.ray.watchdog import MARK
from raybcgd.experiment import run
from raybcgd.record.rounds import RoundLog
from tests.conftest import small
from tests.test_ctrl_c import remaining_processes

pytestmark = [pytest.mark.ray, pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")]

TABLES = {
    "rounds": 12,
    "model": {"name": "tests.chaos.slow:slow", "options": {}},
    "local": {"stack": 0},
    "hosts": {"count": 2},
}


def pid_of(name: str, mark: str) -> int:
    """Return the process with a mark in its environment whose program has this name."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            program = (folder / "cmdline").read_bytes().split(b"\0")[0].decode()
            if mark.encode() in (folder / "environ").read_bytes() and Path(program).name == name:
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError(f"no {name}")


def unmarked(driver: int) -> list[str]:
    """Return the processes of a driver, except its watchdog, that do not have the mark of its Ray."""
    found, entry = [], f"{MARK}=".encode()
    for child in psutil.Process(driver).children(recursive=True):
        line = " ".join(child.cmdline())
        if "watchdog.py" not in line and entry not in Path(f"/proc/{child.pid}/environ").read_bytes():
            found.append(line)
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(run(small(**TABLES), out=tmp_path_factory.mktemp("local") / "run").summary["sha256"])


@pytest.mark.parametrize("name", ["gcs_server", pytest.param("raylet", marks=pytest.mark.slow)])
def test_a_run_goes_on_after_the_death_of_a_vital_process(name: str, expected: str, out: Path, tmp_path: Path) -> None:
    mark = f"raybcgd-test-{time.time_ns()}"
    config = tmp_path / "small.toml"
    config.write_text(small(**TABLES, engine="ray").to_toml())
    process = subprocess.Popen(
        [sys.executable, "-m", "raybcgd", "train", str(config), "--out", str(out)],
        env={**os.environ, "RAYBCGD_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert any("round 3/" in line for line in process.stdout)
        assert process.stderr is not None
        assert unmarked(process.pid) == []
        killed = time.monotonic()
        os.kill(pid_of(name, mark), signal.SIGKILL)
        line = process.stderr.readline()
        assert line == f"Ray died or did not start ({name} ended with signal 9); starting it again\n"
        assert time.monotonic() - killed < 5  # Ray itself takes a minute
        _, errors = process.communicate(timeout=200)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
    assert json.loads((out / "summary.json").read_text())["sha256"] == expected
    records = list(RoundLog(out / "rounds.jsonl"))
    assert [record.round for record in records] == list(range(TABLES["rounds"]))
    assert remaining_processes(mark, 5.0) == []
