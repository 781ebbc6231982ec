"""[Ray] The local Ray that a run starts: start it, notice if it dies, restart it, and end all of its processes."""

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import ray

from raybcgd.engine.ray.watchdog import MARK, end_marked, watching
from raybcgd.errors import ConfigError, RunError, last_line
from raybcgd.interrupts import delayed

log = logging.getLogger(__name__)

_CHECK_SECONDS = 0.5
"""Time between two checks of Ray's processes while the driver waits for a result."""
_QUIET_SECONDS = 0.5
"""Processes have ended if none is found for this long. During an exec, a process has no environment for a moment."""
_STARTS = 3
"""Number of attempts to start Ray before the run gives up."""
_VITAL = ("gcs_server", "raylet")
"""The processes that Ray cannot work without. It does not restart them, and its calls wait for them for a minute."""


class RayDied(Exception):
    """A vital process of our own Ray ended. The message names it."""


class OwnRay:
    """A local Ray whose processes have a mark in their environment, which identifies exactly these processes."""

    def __init__(self, join: Callable[[], None]) -> None:
        self._join, self._mark = join, secrets.token_hex(16)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Keep Ray up during the block."""
        global _current
        with watching(self._mark):
            try:
                self._start()
                _current = self
                yield
            finally:
                _current = None
                self._end()

    def _start(self) -> None:
        for attempt in range(1, _STARTS + 1):
            try:
                with delayed(), self._marking():
                    self._join()
                    _silence()
                return
            except ConfigError:
                raise
            except Exception as error:  # Ray raises many types if one of its processes dies or is too slow
                self._end()
                cause = last_line(error)
                if attempt == _STARTS:
                    raise RunError(f"Ray did not start on this machine ({cause}); see its logs in {_logs()}") from None
                log.warning("Ray did not start (%s); retrying", cause)

    @contextlib.contextmanager
    def _marking(self) -> Iterator[None]:
        """Set the mark while Ray starts. Processes that the driver starts later must not have it.

        Ray's agents change their titles, which overwrites a part of their environment unless SPT_NOENV is set.
        """
        outer = {name: os.environ.get(name) for name in (MARK, "SPT_NOENV")}
        os.environ |= {MARK: self._mark, "SPT_NOENV": "1"}
        try:
            yield
        finally:
            for name, value in outer.items():
                del os.environ[name]
                if value is not None:
                    os.environ[name] = value

    def _end(self) -> None:
        with delayed():
            if self.dead():  # otherwise ray.shutdown() would wait for processes that need the dead one
                end_marked(self._mark)
            ray.shutdown()
            end_marked(self._mark, _QUIET_SECONDS)

    def dead(self) -> str | None:
        """Return how a vital process ended, if one did."""
        node: Any = ray._private.worker._global_node
        for name in _VITAL if node is not None else ():
            for started in node.all_processes.get(name, ()):
                if (code := started.process.poll()) is not None:
                    return f"{name} ended with " + (f"signal {-code}" if code < 0 else f"exit code {code}")
        return None

    def restart(self) -> None:
        """End all processes and start new ones."""
        self._end()
        self._start()


_current: OwnRay | None = None


def dead() -> str | None:
    """Return how a vital process of our own Ray ended, if one did."""
    return None if _current is None else _current.dead()


def restart() -> None:
    """End all processes of our own Ray, some of which may still be working on the run, and start new ones."""
    assert _current is not None
    _current.restart()


def wait(result: Any, seconds: float) -> bool:
    """Wait up to `seconds` for the result of a call. Return whether it arrived. Raise RayDied if our own Ray died."""
    if _current is None:
        return bool(ray.wait([result], timeout=seconds)[0])
    deadline = time.monotonic() + seconds
    while not ray.wait([result], timeout=min(seconds, _CHECK_SECONDS))[0]:
        if died := dead():
            raise RayDied(died)
        if time.monotonic() >= deadline:
            return False
    return True


def get(ref: Any) -> Any:
    """Return the result of a call. Raise RayDied if our own Ray dies before that."""
    while not wait(ref, 60.0):
        pass
    return ray.get(ref)


def _silence() -> None:
    """Stop Ray's thread that prints pages of text about dead processes. The run reports them in one line."""
    worker: Any = ray._private.worker.global_worker
    worker.threads_stopped.set()
    worker.gcs_error_subscriber.close()


def _logs() -> str:
    return os.path.join(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "session_latest", "logs")
