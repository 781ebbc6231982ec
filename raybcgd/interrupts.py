"""The signals that end a command: Ctrl-C, SIGTERM (Kubernetes, Slurm, preemption) and SIGHUP (a closed terminal)."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_presses: list[int] = []
"""The Ctrl-C presses since the command started."""
_terminated: "list[Terminated]" = []
"""What SIGTERM and SIGHUP raised since the command started."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP. Code that cleans up after Ctrl-C also cleans up after these."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C and Terminated on SIGTERM and SIGHUP. A second Ctrl-C ends the process."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        # Ignored signals stay ignored: shells ignore Ctrl-C for background processes, and `nohup` ignores SIGHUP.
        expected = (signal.default_int_handler, signal.SIG_DFL)
        before = {number: found for number in _SIGNALS if (found := signal.getsignal(number)) in expected}
    _presses.clear()
    _terminated.clear()
    for number in before:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ended(end: KeyboardInterrupt) -> tuple[str, int]:
    """Return what ended a command, and its exit code. Ray sometimes replaces Terminated with KeyboardInterrupt."""
    terminated = end if isinstance(end, Terminated) else next(reversed(_terminated), None)
    return ("interrupted", 130) if terminated is None else (f"ended by {terminated}", terminated.exit_code)


@contextlib.contextmanager
def delayed() -> Iterator[None]:
    """Delay the signals until the block ends. Handlers that the block installs for them are ignored or removed again.

    An interrupt while Ray starts or stops would leave processes behind. Ray's own SIGTERM handlers abort the process,
    or raise SystemExit at an arbitrary point, where it can get lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        received.append(number)
        _count(number)

    before: dict[int, Any] = {n: found for n in _SIGNALS if callable(found := signal.getsignal(n))}
    install = signal.signal

    def install_others(number: int, handler: Any) -> Any:
        return record if number in before else install(number, handler)

    for number in before:
        install(number, record)
    signal.signal = install_others  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = install
        for number, handler in before.items():
            install(number, handler)
    if received:
        _presses.clear()  # the handler counts the first one again
        before[received[0]](received[0], None)


def _raise(number: int, frame: FrameType | None) -> None:
    _count(number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    _terminated.append(Terminated(number))
    raise _terminated[-1]


def _count(number: int) -> None:
    """End the process at the second Ctrl-C, together with its children."""
    if number != signal.SIGINT:
        return
    _presses.append(number)
    if len(_presses) > 1:
        for path in Path("/proc/self/task").glob("*/children"):
            for child in path.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
        os._exit(130)
