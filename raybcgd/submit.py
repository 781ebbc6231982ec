"""[Ray] Submit an experiment as a Ray job and follow its log."""

import asyncio
import contextlib
import secrets
import shlex
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import tomli_w
from aiohttp import ClientError
from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

import raybcgd
from raybcgd.algorithms.settings import ALGORITHMS
from raybcgd.config import load_config
from raybcgd.config.files import config_files, read_tables
from raybcgd.errors import ConfigError, RunError, first_line
from raybcgd.storage import JOB_RUNS, slug

_POLL_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
_SIGNAL_BASE = 128
"""If a signal ends a program, shells report 128 plus the signal's number as its exit code."""


@dataclass(frozen=True)
class SubmittedJob:
    """A Ray job on a cluster."""

    id: str
    address: str
    folder: str
    """The run folder, on the node that runs the job's driver: by default, the head node."""


def submit(
    config: Path,
    *,
    address: str | None = None,
    settings: Sequence[str] = (),
    out: str | None = None,
    resume: bool = False,
    working_dir: Path | None = None,
) -> SubmittedJob:
    """Send this package and a config to a cluster, and start `raybcgd train` there.

    The cluster needs the package's dependencies, not the package. Put your own modules and files into `working_dir`,
    together with the config.
    """
    experiment = load_config(config, settings)  # report errors before anything is sent
    if resume and out is None and experiment.checkpoint.address is None:
        raise ConfigError("--resume auto needs a run to resume; add --out, or set checkpoint.address")
    method = slug(ALGORITHMS.name_of(type(experiment.algorithm)))
    label = f"{time.strftime('%Y%m%d-%H%M%S')}-{method}-{secrets.token_hex(2)}"
    folder = _folder(out or label)
    with _cluster_errors(address), _directory(config, working_dir) as (directory, name):
        client = JobSubmissionClient(_dashboard(address))
        package = str(Path(raybcgd.__file__).parent)
        client.submit_job(
            entrypoint=_entrypoint(name, settings, folder, resume),
            submission_id=f"raybcgd-{label}",
            runtime_env={"working_dir": str(directory), "py_modules": [package], "excludes": ["runs"]},
        )
    return SubmittedJob(f"raybcgd-{label}", client.get_address(), folder)


def _folder(out: str) -> str:
    """Return the run folder on the cluster. A relative path would be in the job's folder, which Ray deletes."""
    if "://" in out:
        raise ConfigError(f"--out {out} is not a folder; use a path, and checkpoint.address for a bucket")
    return out if out.startswith(("/", "~/")) else f"~/{JOB_RUNS}/{out}"


def _dashboard(address: str | None) -> str | None:
    """Return the address as a URL, and raise an error if nothing listens there. Ray itself would retry for a minute."""
    if address is None or address == "auto":
        return address
    url = address if "://" in address else f"http://{address}"
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise _no_cluster(address, error) from None
    return url


def _no_cluster(address: str | None, error: Exception) -> ConfigError:
    return ConfigError(
        f"--address {address or '(default)'}: no Ray cluster answers there ({first_line(error)}); use the address of "
        "its dashboard, such as http://127.0.0.1:8265"
    )


def _entrypoint(config: str, settings: Sequence[str], folder: str, resume: bool) -> str:
    # The node's shell expands $HOME; it would not expand a quoted ~.
    where = f'"$HOME"/{shlex.quote(folder[2:])}' if folder.startswith("~/") else shlex.quote(folder)
    words = [shlex.quote(config), *(f"--set {shlex.quote(text)}" for text in settings), f"--out {where}"]
    return " ".join(["python -m raybcgd train", *words, *(["--resume auto"] if resume else [])])


@contextlib.contextmanager
def _directory(config: Path, working_dir: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield the folder to send, and the path of the config in it."""
    if working_dir is not None:
        for file in config_files(config):
            if not file.resolve().is_relative_to(working_dir.resolve()):
                raise ConfigError(
                    f"{file} is not in --working-dir {working_dir}; move it there, or choose another folder"
                )
        yield working_dir, str(config.resolve().relative_to(working_dir.resolve()))
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / config.name).write_text(tomli_w.dumps(read_tables(config)))  # merged with the files it extends
        yield Path(folder), config.name


def follow(job: SubmittedJob, write: Callable[[str], None]) -> int:
    """Pass the job's log to `write` until the job ends. Return the job's exit code."""
    with _cluster_errors(job.address):
        client = JobSubmissionClient(job.address)
        asyncio.run(_follow_log(client, job, write))
        info: Any = client.get_job_info(job.id)
    if info.status == JobStatus.SUCCEEDED:
        return 0
    code = info.driver_exit_code
    if code is None:  # it did not start, or was stopped
        raise RunError(f"job {job.id}: {info.status.value.lower()}: {' '.join((info.message or '').split())}")
    return int(code) if code >= 0 else _SIGNAL_BASE - int(code)


async def _follow_log(client: JobSubmissionClient, job: SubmittedJob, write: Callable[[str], None]) -> None:
    seen = 0
    while True:
        known = seen  # a new connection starts at the beginning of the log
        with contextlib.suppress(RuntimeError, ClientError):  # if the connection breaks, reconnect
            async for text in client.tail_job_logs(job.id):
                fresh = text[known:]
                known -= min(known, len(text))
                seen += len(fresh)
                if fresh:
                    write(fresh)
        if client.get_job_status(job.id).is_terminal():
            return
        await asyncio.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _cluster_errors(address: str | None) -> Iterator[None]:
    """Report in one line that a cluster refuses a request or does not answer."""
    try:
        yield
    except (RunError, ConfigError):
        raise
    except (ConnectionError, ValueError) as error:
        raise _no_cluster(address, error) from None
    except (RuntimeError, RayError) as error:
        where = f" at {address}" if address else ""
        raise RunError(f"the cluster{where} refused the request: {first_line(error)}") from None
