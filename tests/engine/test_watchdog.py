"""The watchdog: it kills the processes with its mark, also late ones, and no others."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raybcgd.engine.ray.watchdog import MARK, end_marked, marked

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")

DRIVER = """
import os, subprocess, sys, time
from raybcgd.engine.ray.watchdog import MARK, watching
with watching(sys.argv[1]):
    if sys.argv[2] == "late":  # the shell has no mark, so it outlives the driver
        subprocess.Popen(["sh", "-c", f"sleep 1.5; {MARK}={sys.argv[1]} sleep 100 & echo $!"])
    child = subprocess.Popen(["sleep", "100"], env={**os.environ, MARK: sys.argv[1]}, start_new_session=True)
    print(child.pid, flush=True)
    if sys.argv[2] == "end":
        sys.exit()
    time.sleep(100)
"""


def sleeper(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "100"], env={**os.environ, MARK: mark}, start_new_session=True)


def driver(mark: str, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", DRIVER, mark, how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_only_processes_with_the_whole_mark_are_killed() -> None:
    mark = f"test{time.time_ns()}"
    ours, others = [sleeper(mark), sleeper(mark)], [sleeper(mark + "0"), sleeper("0" + mark)]
    try:
        while sorted(marked(mark)) != sorted(process.pid for process in ours):
            time.sleep(0.01)  # a new process has its environment after exec
        end_marked(mark)
        assert [process.wait(5) for process in ours] == [-9, -9]
        assert [process.poll() for process in others] == [None, None]
    finally:
        for process in (*ours, *others):
            process.kill()
            process.wait()


def test_the_processes_of_a_killed_driver_end_even_if_they_start_after_its_death() -> None:
    mark = f"test{time.time_ns()}"
    process = driver(mark, "late")
    process.kill()
    assert process.stdout is not None
    late = int(process.stdout.readline())  # printed after the driver's death
    deadline = time.monotonic() + 10
    while running(late) and time.monotonic() < deadline:  # a new process has no environment before exec
        time.sleep(0.1)
    assert not running(late)
    assert marked(mark) == []
    process.wait()


def test_a_driver_that_ends_by_itself_leaves_the_rest_to_ray() -> None:
    mark = f"test{time.time_ns()}"
    assert driver(mark, "end").wait(10) == 0
    time.sleep(1.0)
    assert len(marked(mark)) == 1
    end_marked(mark)
