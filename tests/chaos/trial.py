"""One chaos trial: a run from the command line, disturbed from outside, resumed if its driver ends, and checked."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raybcgd.record.rounds import RoundLog
from tests.chaos.processes import MARK, left_after, marked, named
from tests.chaos.slow import HANG
from tests.conftest import small

ROUNDS = 20
SILENCE_SECONDS = 8.0
STOP_SECONDS = 20.0
LEFT_SECONDS = 15.0
END_SECONDS = 240.0
TARGETS = ("driver", "coordinator", "host", "raylet", "gcs_server")
KINDS = (*(f"kill {name}" for name in TARGETS), *(f"stop {name}" for name in TARGETS))
KINDS += ("terminate driver", "fill disk", "hang client")
ROOT = Path(__file__).parents[2]


def config_text(engine: str) -> str:
    """Return the config of every trial: FedBCGD+ on the digits."""
    hosts = {"count": 2, "silence_seconds": SILENCE_SECONDS}
    return small(
        rounds=ROUNDS,
        engine=engine,
        model={"name": "tests.chaos.slow:slow", "options": {}},
        local={"epochs": 1, "stack": 0},
        checkpoint={"every": 2},
        hosts=hosts,
    ).to_toml()


@dataclass
class Event:
    """Something that happens to a run, some seconds after the start of the driver or after the previous event."""

    kind: str
    gap_seconds: float
    at: float | None = None
    """When it happened. None: the run ended first."""
    recovered_at: float | None = None
    """End of the longest pause between committed rounds, from this event to the next."""
    phase: str = "training"
    exit_code: int | None = None
    """The exit code of the driver, if the event ended it."""


def draw(seed: int, number: int, may_mount: bool) -> list[Event]:
    """Draw the events of a trial."""
    rng = random.Random(f"{seed} {number}")
    kinds = [kind for kind in KINDS if may_mount or kind != "fill disk"]
    count = rng.choices((1, 2, 3, 4), weights=(4, 3, 2, 1))[0]
    # The trial's number sets its first kind, so that every kind occurs equally often.
    chosen = [kinds[number % len(kinds)], *(rng.choice(kinds) for _ in range(count - 1))]
    rng.shuffle(chosen)
    return [Event(kind, round(rng.uniform(0.3, 14.0 if k == 0 else 8.0), 2)) for k, kind in enumerate(chosen)]


@dataclass
class Trial:
    """A run, its driver, and what was found wrong."""

    number: int
    events: list[Event]
    expected: str
    """The SHA-256 of the undisturbed run."""
    resumes: int = 0
    faults: list[str] = field(default_factory=list)
    _process: Any = None

    def run(self) -> dict[str, Any]:
        """Run the trial and return its results."""
        began = time.monotonic()
        self._mark = f"chaos{time.time_ns()}"
        with contextlib.ExitStack() as cleanup:
            self._folder = Path(tempfile.mkdtemp(prefix="rc"))
            cleanup.callback(shutil.rmtree, self._folder, ignore_errors=True)
            if any(event.kind == "fill disk" for event in self.events):
                subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", self._folder], check=True)
                cleanup.callback(subprocess.run, ["umount", "--lazy", self._folder], check=False)
            cleanup.callback(self._end_all)
            self._ray_folder = tempfile.mkdtemp(prefix="rr")  # not on the disk that is filled
            cleanup.callback(shutil.rmtree, self._ray_folder, ignore_errors=True)
            self._prepare()
            bystander = subprocess.Popen(["sleep", "1000"], env={**os.environ, "RAYBCGD_LOCAL_RAY": "another"})
            cleanup.callback(bystander.kill)
            self._disturbed_run()
            self._check(bystander)
        applied = [event for event in self.events if event.at is not None]
        return {
            "trial": self.number,
            "seconds": round(time.monotonic() - began, 1),
            "resumes": self.resumes,
            "faults": self.faults,
            "events": [vars(event) for event in applied],
            "too_late": [event.kind for event in self.events if event.at is None],
        }

    def _prepare(self) -> None:
        self._out, self._hang = self._folder / "run", self._folder / "hang"
        self._config = self._folder / "config.toml"
        self._config.write_text(config_text("ray"))
        self._foreign = [self._folder / "mine.txt", self._out / "notes.txt", self._out / "states" / "notes.txt"]
        self._foreign.append(self._out / "checkpoints" / "round-000002.bak")
        for path in self._foreign:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(path.name)

    def _start(self) -> None:
        command = ["train", str(self._config), "--out", str(self._out), "--resume", "auto"]
        environment = {**os.environ, MARK: self._mark, "RAY_TMPDIR": self._ray_folder, "RAY_AUTH_MODE": "disabled"}
        self._errors = Path(self._ray_folder) / f"stderr{self.resumes}"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "raybcgd", *command],
                env={**environment, HANG: str(self._hang)},
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def _disturbed_run(self) -> None:
        self._start()
        for event in self.events:
            if not self._revive():
                break
            self._wait(event.gap_seconds)
            if not self._revive() or not self._apply(event):
                break
            if event.kind in ("kill driver", "terminate driver"):
                self._wait(60)
        self._wait(END_SECONDS)
        if self._process.poll() not in (None, 0) and self._revive():
            self._wait(END_SECONDS)
        if (code := self._process.poll()) is None:
            self.faults.append(f"the run did not end within {END_SECONDS:g} s: {self._said()}")
        elif code != 0:
            self.faults.append(f"the resumed run ended with exit code {code}: {self._said()}")

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _revive(self) -> bool:
        """Resume the run if its driver ended. Return False if the run is complete."""
        code = self._process.poll()
        if code is None:
            return True
        last = next((event for event in reversed(self.events) if event.at is not None), None)
        said = self._said()
        if "Traceback" in said or "SIGABRT" in said:
            self.faults.append(f"exit code {code} with a traceback: {said}")
        if left := left_after(self._mark, LEFT_SECONDS):
            self.faults.append(f"left {LEFT_SECONDS:g} s after the end of the driver: {left}")
            self._end_all()
        if code == 0:
            return False
        if last is None:
            self.faults.append(f"exit code {code} before any event: {said}")
            return False
        last.exit_code = code
        (self._folder / "filler").unlink(missing_ok=True)
        self.resumes += 1
        self._start()
        return True

    def _apply(self, event: Event) -> bool:
        """Trigger an event. Return False if the run ends before that."""
        verb, _, what = event.kind.partition(" ")
        target = self._target(what) if verb in ("kill", "stop", "terminate") else 0
        if target is None:
            return self._process.poll() is None
        log = self._out / "rounds.jsonl"
        event.phase = "training" if log.exists() and log.stat().st_size else "start-up"
        event.at = time.time()
        with contextlib.suppress(ProcessLookupError):
            if verb == "fill":
                self._fill_disk()
            elif verb == "hang":
                self._hang.write_text("")
            elif verb == "stop":
                os.kill(target, signal.SIGSTOP)
                threading.Timer(STOP_SECONDS, _go_on, [target, self._mark]).start()
            else:
                os.kill(target, signal.SIGKILL if verb == "kill" else signal.SIGTERM)
        return True

    def _target(self, what: str) -> int | None:
        """Return a process to disturb, waiting until it has started. None: the run ends before that."""
        rng, deadline = random.Random(f"{self.number} {what}"), time.monotonic() + 40
        while self._process.poll() is None and time.monotonic() < deadline:
            if found := [self._process.pid] if what == "driver" else named(self._mark, what):
                return rng.choice(found)
            time.sleep(0.05)
        return None

    def _fill_disk(self) -> None:
        # Without a buffer, closing the file writes nothing, and so cannot fail on the full disk.
        with (self._folder / "filler").open("wb", buffering=0) as file:
            for size in (2**20, 2**12, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size):
                        pass

    def _check(self, bystander: "subprocess.Popen[bytes]") -> None:
        if left := left_after(self._mark, LEFT_SECONDS):
            self.faults.append(f"left {LEFT_SECONDS:g} s after the end: {left}")
        if bystander.poll() is not None:
            self.faults.append("a process of another run was ended")
        if self._process.poll() == 0:
            if (sha256 := json.loads((self._out / "summary.json").read_text())["sha256"]) != self.expected:
                self.faults.append(f"SHA-256 {sha256[:16]} instead of {self.expected[:16]}")
            records = list(RoundLog(self._out / "rounds.jsonl"))
            if [record.round for record in records] != list(range(ROUNDS)):
                self.faults.append(f"rounds in the log: {[record.round for record in records]}")
            self._find_recoveries([record.timing.finished_at for record in records])
        changed = [path.name for path in self._foreign if not path.exists() or path.read_text() != path.name]
        if changed:
            self.faults.append(f"foreign files changed: {changed}")
        known = {"run", "config.toml", "mine.txt", "hang", "filler"}
        if others := {path.name for path in self._folder.iterdir()} - known:
            self.faults.append(f"new files outside the run folder: {sorted(others)}")

    def _find_recoveries(self, commits: list[float]) -> None:
        applied = [event for event in self.events if event.at is not None]
        for event, following in zip(applied, [*applied[1:], None], strict=False):
            assert event.at is not None
            end = float("inf") if following is None or following.at is None else following.at
            before = max((time for time in commits if time <= event.at), default=event.at)
            after = [time for time in commits if event.at < time < end]
            pauses = [(later - earlier, later) for earlier, later in zip([before, *after], after, strict=False)]
            # If no round commits before the next event, the recovery counts for that event.
            event.recovered_at = max(pauses)[1] if pauses else None

    def _said(self) -> str:
        return self._errors.read_text()[-3000:]

    def _end_all(self) -> None:
        for pid in marked(self._mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


def _go_on(pid: int, mark: str) -> None:
    """Continue a stopped process, unless it has ended and its ID now belongs to another process."""
    with contextlib.suppress(ProcessLookupError):
        if pid in marked(mark):
            os.kill(pid, signal.SIGCONT)
