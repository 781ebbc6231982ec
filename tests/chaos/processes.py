"""The processes of a trial: found from outside, as with `ps`, by a mark in their environment."""

import time
from pathlib import Path

MARK = "RAYBCGD_TEST_MARK"
TITLES = {"coordinator": "ray::Coordinator", "host": "ray::HostActor"}


def marked(mark: str) -> dict[int, str]:
    """Return the command lines of the processes with a mark, by process id."""
    found, entry = {}, f"\0{MARK}={mark}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if entry in b"\0" + (folder / "environ").read_bytes() and (words := (folder / "cmdline").read_bytes()):
                found[int(folder.name)] = words.replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
    return found


def named(mark: str, name: str) -> list[int]:
    """Return the processes of a kind: gcs_server, raylet, coordinator or host."""
    found = marked(mark).items()
    if name in TITLES:
        return sorted(pid for pid, line in found if line.startswith(TITLES[name]))
    return sorted(pid for pid, line in found if Path(line.split()[0]).name == name)


def left_after(mark: str, seconds: float) -> list[str]:
    """Return the command lines of the processes with a mark that are still alive after `seconds`."""
    deadline = time.monotonic() + seconds
    while (found := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [line[:90] for line in found.values()]
