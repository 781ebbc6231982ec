"""[Ray] End the processes of our own local Ray, even if the driver is killed.

Every process of that Ray inherits a mark in its environment. Command lines do not identify them, because Ray's agents
replace theirs. If the driver is killed, a small process kills all processes with the mark; otherwise, Ray's agents
would run for another minute. That process runs this file, which imports only the standard library.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "RAYBCGD_LOCAL_RAY"
"""The environment variable with the mark."""
_QUIET_SECONDS = 3.0
"""How long the watchdog must find no process before it exits. Dying processes can still start others."""


@contextlib.contextmanager
def watching(mark: str) -> Iterator[None]:
    """Start a watchdog that kills the processes with a mark if the driver dies before the block ends."""
    driver = str(os.getpid())
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark, driver],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != MARK},
        start_new_session=True,  # Ctrl-C in the terminal does not reach it
    )
    try:
        yield
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            process.communicate(b"done", timeout=10)


def marked(mark: str) -> list[int]:
    """Return the processes with a mark."""
    entry, found = f"\0{MARK}={mark}\0".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or it belongs to another user
            if entry in b"\0" + (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def end_marked(mark: str, quiet_seconds: float = 0.0, limit_seconds: float = 60.0) -> None:
    """Kill the processes with a mark until none has been found for `quiet_seconds`."""
    started = last_found = time.monotonic()
    while (now := time.monotonic()) - started < limit_seconds:
        if found := marked(mark):
            last_found = now
        elif now - last_found >= quiet_seconds:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _driver_is_done(driver: int) -> bool:
    """Wait for the driver to say that it is done. Return False if it dies before that."""
    while not select.select([sys.stdin], [], [], 0.5)[0]:
        if os.getppid() != driver:  # a fork of the driver may keep the pipe open
            return False
    return bool(sys.stdin.buffer.read())


if __name__ == "__main__":
    if not _driver_is_done(int(sys.argv[2])):
        end_marked(sys.argv[1], _QUIET_SECONDS)
