"""Files: addresses on any file system, atomic writes, and the layout of a run folder."""

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from raybcgd.errors import ConfigError, RunError, first_line

_FULL = (None, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk. Errors of object stores have none."""
FORMAT_VERSION = 3
"""The version of run folders and checkpoints. Those of raybcgd 0.1 have none."""
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray sets this variable in the driver of a submitted job."""
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


def make_address(address: str) -> None:
    """Create the folder at an address. Raise an error if it cannot be used."""
    filesystem, path = open_address(address)
    try:
        filesystem.create_dir(path, recursive=True)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(
            f'checkpoint.address = "{address}" cannot be used ({first_line(error)}); correct it'
        ) from None


def write_file(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
    """Write a file atomically on any file system."""
    if isinstance(filesystem, fs.LocalFileSystem):
        write_atomic(Path(path), data)
        return
    with writing(path, len(data)), filesystem.open_output_stream(path) as stream:
        stream.write(data)  # an object appears only when it is complete


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a local file atomically: readers see either the old or the new content."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    content = data.encode() if isinstance(data, str) else data
    with writing(path, len(content)):
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a local file, wholly or not at all."""
    with writing(path, len(line)), path.open("ab", buffering=0) as file:  # unbuffered: the line is a single write
        before = file.tell()
        try:
            if file.write(line) < len(line):
                file.write(line[-1:])  # raises the error of the incomplete write
                raise OSError("incomplete write")
        except OSError:
            file.truncate(before)
            raise


@contextlib.contextmanager
def writing(path: str | Path, size: int | None = None) -> Iterator[None]:
    """Turn the error of a failed write, such as that of a full disk, into one line. For a folder, `size` is None."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or first_line(error)
        if error.errno not in _FULL:
            raise RunError(f"cannot write {path} ({reason}); correct that, then resume the run") from error
        needed = ""
        if size is not None:
            needed = f": {size:,} bytes are needed"
            with contextlib.suppress(OSError):
                needed += f", {shutil.disk_usage(Path(path).parent).free:,} are free"
        raise RunError(f"cannot write {path} ({reason}){needed}; make room, then resume the run") from error


class RunFolder:
    """The files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.rounds = path / "rounds.jsonl"
        self.partition = path / "partition.json"
        self.final = path / "final.safetensors"
        self.summary = path / "summary.json"
        self.diverged = path / "diverged.txt"

    @property
    def divergence(self) -> str | None:
        """The error of a run that diverged, and would diverge again with the same settings. None: it did not."""
        return self.diverged.read_text(errors="replace").strip() if self.diverged.exists() else None

    @property
    def run_name(self) -> str:
        """The run's name in metrics and logs: its folder, preceded by the parent folder unless that is `runs`."""
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


def make_folder(folder: Path, kind: str) -> Path:
    """Create the folder of a comparison or a sweep, or raise an error if it is not empty."""
    check_holds(folder, kind)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; choose another --out, or add --resume auto to continue its runs")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder} ({error.strerror}); choose another --out") from None
    return folder


def check_holds(folder: Path, kind: str) -> None:
    """Raise an error if a folder holds a run, a comparison or a sweep, and that is not of this kind."""
    files = {
        "run": ("config.toml", "rounds.jsonl"),
        "comparison": ("planned.json", "comparison.json"),
        "sweep": ("sweep.json", "tune"),
    }
    for found in (name for name in files if name != kind and any((folder / file).exists() for file in files[name])):
        raise ConfigError(f"{folder} holds a {found}, not a {kind}; choose another --out")


def slug(label: str) -> str:
    """Convert a label to a file name. A number keeps its minus sign, so that seeds -1 and 1 have different folders."""
    signed = re.sub(r"(^|\s)-(?=[\d.])", r"\1minus ", label.lower().replace("+", "_plus"))
    return re.sub(r"[^a-z0-9_.]+", "-", signed).strip("-.") or "run"


def in_job() -> bool:
    """Return whether this process is the driver of a submitted Ray job."""
    return JOB_VARIABLE in os.environ
