"""[Ray] A small process that ends what is left of our own local Ray if the driver is killed.

Ray's agents would otherwise stay for a minute. The process runs this file alone, with the standard library only.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_LAST_SECONDS = 8.0
"""How long the watchdog looks for processes after the driver's death. Dying processes can still start others."""


@contextlib.contextmanager
def watching(session: str) -> Iterator[None]:
    """Start a watchdog for the Ray with this session folder. It ends, and does nothing, when the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, session],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the terminal does not reach it
    )
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            process.communicate(b"done", timeout=10)


def _end_session(session: str) -> None:
    """Kill the processes of a Ray session."""
    deadline = time.monotonic() + _LAST_SECONDS
    while time.monotonic() < deadline:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int(process.name) != os.getpid() and _belongs(process, session):
                    os.kill(int(process.name), signal.SIGKILL)
        time.sleep(0.5)


def _belongs(process: Path, session: str) -> bool:
    """Return whether a process has the session folder in its command line or writes its output there.

    Agents and workers replace their command lines by a title, but their output stays a file of the session.
    """
    if session.encode() in (process / "cmdline").read_bytes():
        return True
    return any(os.readlink(process / "fd" / number).startswith(f"{session}/") for number in ("1", "2"))


if __name__ == "__main__":
    if not sys.stdin.buffer.read():  # the driver died without a word
        _end_session(sys.argv[1])
