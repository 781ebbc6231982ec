"""One driver at a time per run folder."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from raybcgd.errors import ConfigError, RunError
from raybcgd.experiment import run
from raybcgd.record import lock as locks
from raybcgd.record.lock import RunLock, locked
from raybcgd.record.rounds import RoundRecord
from tests.conftest import small

OTHER_PROCESS = """
import sys, time
from raybcgd.record.lock import RunLock
RunLock(sys.argv[1]).acquire()
print("held", flush=True)
time.sleep(1000)
"""


def test_a_second_driver_is_refused_while_the_first_one_runs(out: Path) -> None:
    refused: list[str] = []

    def resume(record: RoundRecord) -> None:
        if record.round == 1:
            before = (out / "rounds.jsonl").read_bytes()
            with pytest.raises(ConfigError, match=r"is in use by process \d+ on .*; wait until it ends, or stop it$"):
                run(small(rounds=8), out=out, resume=True)
            refused.append("yes")
            assert (out / "rounds.jsonl").read_bytes() == before

    result = run(small(rounds=4), out=out, observe=resume)
    assert refused == ["yes"]
    assert [record.round for record in result.records] == [0, 1, 2, 3]
    assert not (out / "driver.lock").exists()


def test_two_run_folders_with_the_same_address_are_two_drivers_of_one_run(tmp_path: Path) -> None:
    saved = str(tmp_path / "saved")
    with locked(str(tmp_path / "a"), saved), pytest.raises(ConfigError, match=rf"^{saved} is in use"):
        run(small(checkpoint={"address": saved}), out=tmp_path / "b")


def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", OTHER_PROCESS, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(ConfigError, match=f"process {process.pid} "):
        RunLock(str(tmp_path)).acquire()
    process.kill()
    process.wait()
    began = time.monotonic()
    with locked(str(tmp_path)):
        assert time.monotonic() - began < 5


def test_a_later_process_with_the_same_id_is_not_the_owner(tmp_path: Path) -> None:
    with locked(str(tmp_path)):
        owner = json.loads((tmp_path / "driver.lock").read_text())
    (tmp_path / "driver.lock").write_text(json.dumps({**owner, "started": "1"}))
    with locked(str(tmp_path)):
        pass


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(locks, "_POLL_SECONDS", 0.1)


@pytest.fixture(params=["folder", "bucket"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return str(tmp_path)
    bucket = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(locks, "open_address", lambda address: (bucket, "run"))
    return "bucket://run"


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_machine", lambda: "another machine")


@pytest.mark.usefixtures("quick")
def test_a_driver_on_another_machine_is_seen_by_its_renewals(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked(address) as (held,):
        elsewhere(monkeypatch)
        with pytest.raises(ConfigError, match="is in use by process"):
            RunLock(address).acquire()
        held.check()


class Suspended(threading.Event):
    """The timer of a machine that sleeps until it is woken up."""

    def __init__(self) -> None:
        super().__init__()
        self.awake = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.awake.wait()
        return self.is_set()


@pytest.mark.usefixtures("quick")
def test_the_lock_of_a_dead_machine_is_taken_over_and_a_driver_that_wakes_up_stops(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "STALE_SECONDS", 0.4)
    first, sleep = RunLock(address), Suspended()
    first._stop = sleep
    first.acquire()
    elsewhere(monkeypatch)
    second = RunLock(address)
    second.acquire()
    first.check()
    sleep.awake.set()
    first._thread.join(20)
    with pytest.raises(RunError, match="another driver took over the run"):
        first.check()
    first.release()
    second.check()
    second.release()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"pid": "x"}'])
@pytest.mark.usefixtures("quick")
def test_a_damaged_lock_does_not_block_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setattr(locks, "STALE_SECONDS", 0.4)
    (tmp_path / "driver.lock").write_text(content)
    with locked(str(tmp_path)):
        found: dict[str, Any] = json.loads((tmp_path / "driver.lock").read_text())
        assert isinstance(found["pid"], int)
