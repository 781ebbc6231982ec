"""Files: addresses on any file system, atomic writes, and the layout of a run folder."""

import os
import re
import secrets
import time
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from raybcgd.errors import ConfigError, first_line

FORMAT_VERSION = 3
"""The version of run folders and checkpoints. Those of raybcgd 0.1 have none."""
JOB_RUNS = "raybcgd-runs"
"""Folder for the runs of Ray jobs, in the home directory of the node where a job runs."""


def open_address(address: str) -> tuple[fs.FileSystem, str]:
    """Return a pyarrow file system and a path in it, from a folder or an address such as s3://bucket/path."""
    if "://" not in address:
        return fs.LocalFileSystem(use_mmap=True), os.path.abspath(address)
    try:
        filesystem, path = fs.FileSystem.from_uri(address)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f'checkpoint.address = "{address}" is invalid ({first_line(error)}); correct it') from None
    return filesystem, str(path)


def write_file(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
    """Write a file atomically on any file system."""
    if isinstance(filesystem, fs.LocalFileSystem):
        write_atomic(Path(path), data)
        return
    with filesystem.open_output_stream(path) as stream:  # an object appears only when it is complete
        stream.write(data)


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a local file atomically: readers see either the old or the new content."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    temporary.write_bytes(data.encode() if isinstance(data, str) else data)
    temporary.replace(path)


class RunFolder:
    """The files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.rounds = path / "rounds.jsonl"
        self.partition = path / "partition.json"
        self.final = path / "final.safetensors"
        self.summary = path / "summary.json"

    @property
    def run_name(self) -> str:
        """The run's name in metrics and logs: its folder, preceded by the folder of its comparison or sweep."""
        parent, name = self.path.absolute().parts[-2:]
        return name if parent == "runs" else f"{parent}/{name}"


def new_folder(name: str) -> Path:
    """Return a path for a new run under `runs/`, named after the time and `name`.

    In a Ray job, it is under `~/raybcgd-runs/`, because Ray deletes a job's working directory.
    """
    label = f"{time.strftime('%Y%m%d-%H%M%S')}-{slug(name)}"
    if in_job():
        return Path.home() / JOB_RUNS / f"{label}-{secrets.token_hex(2)}"  # jobs may start in the same second
    path, number = Path("runs") / label, 1
    while path.exists():
        number += 1
        path = path.with_name(f"{label}-{number}")
    return path


def make_folder(folder: Path) -> Path:
    """Create a folder for results, or raise an error if it is not empty."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder} ({error.strerror}); choose another --out") from None
    return folder


def slug(label: str) -> str:
    """Convert a label to a file name."""
    return re.sub(r"[^a-z0-9_.]+", "-", label.lower().replace("+", "_plus")).strip("-.") or "run"


def in_job() -> bool:
    """Return whether this process is the driver of a submitted Ray job."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
