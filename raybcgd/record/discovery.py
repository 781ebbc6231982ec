"""The files through which Prometheus, or the collector of a node, discovers the metrics of runs.

The collector imports this module, so it uses only the standard library.
"""

import contextlib
import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple


class Target(NamedTuple):
    """Where a run serves its metrics."""

    address: str
    run: str
    """The run's name in dashboards."""
    instance: str
    """The path of the run folder. It stays the same after a resume, unlike the address."""


def discovery_folder(folder: str | None = None) -> Path:
    """Return the folder of the discovery files. Default: raybcgd-discovery in the system's temporary folder."""
    return Path(folder) if folder is not None else Path(tempfile.gettempdir()) / "raybcgd-discovery"


def discovery_file(folder: str | None, run: str, instance: str = "") -> Path:
    """Return the path of a run's discovery file, which stays the same after a resume."""
    stem = re.sub(r"[^A-Za-z0-9_.]+", "-", run).strip("-.") or "run"
    return discovery_folder(folder) / f"{stem}-{hashlib.sha256((instance or run).encode()).hexdigest()[:8]}.json"


def write_target(file: Path, target: Target) -> None:
    """Announce a run. Every user can announce runs in the same folder, and Prometheus can read the file."""
    folder = file.parent
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o1777)  # like /tmp; mkdir's own mode depends on the umask
    labels = {"job": "raybcgd", "run": target.run, "instance": target.instance}
    temporary = file.with_name(f"{file.name}.{os.getpid()}.part")
    temporary.write_text(json.dumps([{"targets": [target.address], "labels": labels}]) + "\n")
    temporary.chmod(0o644)
    temporary.replace(file)


def read_targets(folder: Path) -> list[Target]:
    """Return the announced runs. Files that are not valid are skipped."""
    found = []
    for file in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError, TypeError):
            (entry,) = json.loads(file.read_text())
            labels = entry["labels"]
            found.append(Target(str(entry["targets"][0]), str(labels["run"]), str(labels["instance"])))
    return found


def remove_discovery_file(file: Path) -> None:
    """Remove a discovery file if it exists."""
    with contextlib.suppress(OSError):
        file.unlink()
