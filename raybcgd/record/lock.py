"""One driver at a time per run: a lock file that names its owner, on any file system."""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyarrow import fs

from raybcgd.errors import ConfigError, RunError
from raybcgd.storage import open_address, write_file

RENEW_SECONDS = 5.0
"""How often the owner renews its lock."""
STALE_SECONDS = 20.0
"""A lock of another machine that has not been renewed for this long is taken over."""
_POLL_SECONDS = 1.0
"""How often to check the lock of another machine."""
_SETTLE_SECONDS = 0.3
"""Time to wait after a takeover, in case another driver found the same dead owner and overwrites the lock."""


class RunLock:
    """The lock `driver.lock` under an address."""

    def __init__(self, address: str) -> None:
        self._filesystem, root = open_address(address)
        self._root, self.path = root, f"{root}/driver.lock"
        self._owner = {**_this_process(), "token": secrets.token_hex(8)}
        self._stop = threading.Event()
        self._lost = False
        self._thread = threading.Thread(target=self._renew, daemon=True, name="run-lock")

    def acquire(self) -> None:
        """Take the lock, if necessary from a dead driver. Raise an error if its owner is alive."""
        self._filesystem.create_dir(self._root, recursive=True)
        found = self._read()
        if found is None:
            if not self._create():  # another driver was faster
                raise self._refusal(self._read() or {})
        else:
            if self._is_alive(found):
                raise self._refusal(found)
            self._write(0)
        if found is not None or not isinstance(self._filesystem, fs.LocalFileSystem):
            time.sleep(_SETTLE_SECONDS)
            if not self._is_ours(current := self._read()):
                raise self._refusal(current or {})
        self._thread.start()

    def check(self) -> None:
        """Raise an error if another driver has taken over the lock, for example while this machine was suspended."""
        if self._lost:
            raise RunError(f"another driver took over the run ({self.path}); this one stops")

    def release(self) -> None:
        """Release the lock."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(OSError):
            if self._is_ours(self._read()):
                self._filesystem.delete_file(self.path)

    def _renew(self) -> None:
        beat = 0
        while not self._stop.wait(RENEW_SECONDS):
            beat += 1
            # A full disk or a short outage must not end the run; the next renewal may work.
            with contextlib.suppress(OSError, RunError):
                if not self._is_ours(self._read()):
                    self._lost = True
                    return
                self._write(beat)

    def _is_alive(self, owner: dict[str, Any]) -> bool:
        """Return whether the owner of a lock is running. An owner on another machine is alive if it renews its lock."""
        here = self._owner
        if owner.get("machine") == here["machine"]:
            return _started(owner.get("pid")) == owner.get("started")
        deadline = time.monotonic() + STALE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            current = self._read()
            if current is None:
                return False
            if current != owner:
                return True
        return False

    def _is_ours(self, found: dict[str, Any] | None) -> bool:
        return found is not None and found.get("token") == self._owner["token"]

    def _create(self) -> bool:
        """Create the lock file. Return False if it already exists."""
        if not isinstance(self._filesystem, fs.LocalFileSystem):
            self._write(0)
            return True
        temporary = Path(f"{self.path}.{self._owner['token']}.part")
        temporary.write_bytes(self._content(0))
        try:
            os.link(temporary, self.path)  # atomic, even on NFS
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def _write(self, beat: int) -> None:
        write_file(self._filesystem, self.path, self._content(beat))

    def _content(self, beat: int) -> bytes:
        return (json.dumps({**self._owner, "beat": beat}) + "\n").encode()

    def _read(self) -> dict[str, Any] | None:
        """Return the content of the lock file. None: there is no file. Empty: the file is not a lock."""
        try:
            with self._filesystem.open_input_file(self.path) as file:
                found = json.loads(bytes(file.read()))
        except FileNotFoundError:
            return None
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _refusal(self, owner: dict[str, Any]) -> ConfigError:
        return ConfigError(
            f"{self._root} is in use by process {owner.get('pid', '?')} on {owner.get('host', '?')}, started "
            f"{owner.get('since', '?')}; wait until it ends, or stop it"
        )


@contextlib.contextmanager
def locked(*addresses: str | None) -> Iterator[list[RunLock]]:
    """Hold the locks of some addresses."""
    locks = {lock.path: lock for lock in map(RunLock, filter(None, addresses))}
    with contextlib.ExitStack() as held:
        for lock in locks.values():
            lock.acquire()
            held.callback(lock.release)
        yield list(locks.values())


def in_use(folder: Path) -> bool:
    """Return whether a driver holds the lock of a run folder, without waiting for it."""
    file = folder / "driver.lock"
    try:
        owner, age = json.loads(file.read_bytes()), time.time() - file.stat().st_mtime
    except (OSError, ValueError):
        return False
    if isinstance(owner, dict) and owner.get("machine") == _machine():
        return _started(owner.get("pid")) == owner.get("started")
    return age < STALE_SECONDS  # the owner is on another machine


def _this_process() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _machine() -> str:
    """Return an id of this boot of this machine and of the PID namespace, within which process ids are unique."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _started(pid: object) -> str | None:
    """Return when a process started, to tell it from a later one with the same id. None: there is no such process."""
    if not isinstance(pid, int):
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]  # a zombie counts as dead
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass
    return "unknown"
