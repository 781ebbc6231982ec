"""Ctrl-C, SIGTERM, SIGHUP and SIGKILL: the command exits within seconds and leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raybcgd.cli import app
from raybcgd.interrupts import Terminated, delayed, handled
from raybcgd.record.rounds import RoundLog
from tests.conftest import ONE_BY_ONE, small


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(small(local=ONE_BY_ONE).to_toml())
    return path


def marked_processes(mark: str) -> list[str]:
    """Return the command lines of all processes with a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes() and (folder / "cmdline").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def remaining_processes(mark: str, seconds: float) -> list[str]:
    """Return the processes with a mark that do not end within some seconds. Ray's workers end after its raylet."""
    deadline = time.monotonic() + seconds
    while (found := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def enable_signals() -> None:
    """Let a process receive Ctrl-C and SIGHUP, which shells ignore in background jobs and nohup ignores."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def interrupt(
    config: Path, out: Path, *settings: str, whole_group: bool, number: signal.Signals = signal.SIGINT
) -> tuple[int, str, float, list[str]]:
    """Send a signal in round 5 of a run. Return the exit code, standard error, seconds, and remaining processes."""
    mark = f"raybcgd-test-{time.time_ns()}"
    given = [part for text in ("rounds=1000000", *settings) for part in ("--set", text)]
    code = "from raybcgd.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", str(config), "--out", str(out), *given],
        env={**os.environ, "RAYBCGD_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=enable_signals,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "round 5/" in line:
                break
        else:
            pytest.fail(f"no fifth round: {process.communicate()[1]}")
        pressed = time.monotonic()
        # A terminal sends Ctrl-C to the process group, `kill` to one process.
        (os.killpg if whole_group else os.kill)(process.pid, number)
        _, errors = process.communicate(timeout=60)
        seconds = time.monotonic() - pressed
        return process.returncode, errors, seconds, remaining_processes(mark, 10.0)
    finally:
        process.kill()


def assert_clean_exit(
    code: int, errors: str, seconds: float, left: list[str], out: Path, number: signal.Signals = signal.SIGINT
) -> None:
    assert code == 128 + number, errors
    assert len(errors.splitlines()) == 1, errors
    assert ("interrupted after" if number == signal.SIGINT else f"ended by {number.name} after") in errors
    assert f"raybcgd resume {out}" in errors
    assert left == []
    assert seconds < 10  # a few seconds on an idle machine
    records = list(RoundLog(out / "rounds.jsonl"))
    assert [record.round for record in records] == list(range(len(records)))
    assert (out / "rounds.jsonl").read_bytes().endswith(b"\n")


linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")


@linux
def test_ctrl_c_stops_a_local_run(config: Path, out: Path) -> None:
    assert_clean_exit(*interrupt(config, out, whole_group=True), out)
    done = len(list(RoundLog(out / "rounds.jsonl")))
    result = CliRunner().invoke(app, ["resume", str(out), "--set", f"rounds={done + 2}"])
    assert result.exit_code == 0, result.output


@linux
@pytest.mark.parametrize("command", ["train", "sweep"])
def test_ctrl_c_stops_a_command_while_it_imports(command: str, config: Path) -> None:
    arguments = [command, str(config), *(["--grid", "algorithm.lr=0.1,0.2"] if command == "sweep" else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "raybcgd", *arguments], stderr=subprocess.PIPE, text=True, preexec_fn=enable_signals
    )
    maps = Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and "libtorch" not in maps.read_text():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")


@linux
@pytest.mark.ray
@pytest.mark.slow
def test_ctrl_c_stops_a_sweep(config: Path, out: Path) -> None:
    command = ["sweep", str(config), "--grid", "algorithm.lr=0.01,0.02", "--set", "rounds=1000000", "--out", str(out)]
    mark = f"raybcgd-test-{time.time_ns()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "raybcgd", *command],
        env={**os.environ, "RAYBCGD_TEST_MARK": mark},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=enable_signals,
    )
    deadline = time.monotonic() + 120
    while not list(out.glob("*/rounds.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("interrupted after 0 finished points; repeat the command with --out ")
    assert marked_processes(mark) == []


@linux
@pytest.mark.ray
@pytest.mark.parametrize("whole_group", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["terminal", "kill"])
def test_ctrl_c_stops_a_run_on_ray_and_its_processes(config: Path, out: Path, whole_group: bool) -> None:
    assert_clean_exit(*interrupt(config, out, "engine=ray", whole_group=whole_group), out)


@linux
@pytest.mark.parametrize(
    ("engine", "number"),
    [
        ("local", signal.SIGTERM),
        ("local", signal.SIGHUP),
        pytest.param("ray", signal.SIGHUP, marks=[pytest.mark.ray, pytest.mark.slow]),
    ],
)
def test_sigterm_and_sighup_end_a_run_with_one_line(
    config: Path, out: Path, engine: str, number: signal.Signals
) -> None:
    """Kubernetes, Slurm and preemption send SIGTERM."""
    ended = interrupt(config, out, f"engine={engine}", whole_group=False, number=number)
    assert_clean_exit(*ended, out, number)


def test_a_handler_that_ray_installs_does_not_get_a_delayed_signal() -> None:
    done = []

    def terminated_while_ray_starts() -> None:
        with delayed():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("the rest of the block")

    outer = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a Ray of other tests may have left its own
    try:
        with handled():
            handler = signal.getsignal(signal.SIGTERM)
            with pytest.raises(Terminated):
                terminated_while_ray_starts()
            assert done
            assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, outer)


@linux
@pytest.mark.ray
def test_sigterm_saves_the_checkpoint_that_is_due(tmp_path: Path, out: Path) -> None:
    """A round's checkpoint is saved when the next one has trained. The signal abandons that one, not the checkpoint.

    On Ray, this is also the test of SIGTERM, which takes the time to start Ray.
    """
    tables = {"model": {"name": "tests.chaos.slow:slow", "options": {}}, "local": {"stack": 0}}
    config = tmp_path / "slow.toml"
    config.write_text(small(**tables, checkpoint={"every": 1}, evaluation={"every": 1000}).to_toml())
    ended = interrupt(config, out, "engine=ray", whole_group=False, number=signal.SIGTERM)
    assert_clean_exit(*ended, out, signal.SIGTERM)
    done = len(list(RoundLog(out / "rounds.jsonl")))
    assert max(out.glob("checkpoints/round-*")).name == f"round-{done:06}"


TWICE = """
import time
from raybcgd.interrupts import delayed, handled
with handled(), delayed():
    print("ready", flush=True)
    time.sleep(100)
"""


def test_a_second_ctrl_c_ends_the_process_at_once() -> None:
    """Even while Ray starts or stops, when the first one waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", TWICE], stdout=subprocess.PIPE, text=True, preexec_fn=enable_signals
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
