"""[Ray] Submit an experiment as a Ray job and follow its log."""

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
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
from raybcgd.report.job_log import last_round
from raybcgd.report.progress import RoundLine
from raybcgd.runtime_env import runtime_environment
from raybcgd.storage import JOB_RUNS, JOB_VARIABLE, slug

Command = Literal["train", "compare", "sweep"]
_PREFIX = "raybcgd-"
"""What the ids of our jobs start with."""
_POLL_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
_STOP_SECONDS = 30.0
"""Maximum time until Ray signals the driver of a job that is to stop."""
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
    command: Command = "train",
    arguments: Sequence[str] = (),
    runtime_env: Path | None = None,
    env: Sequence[str] = (),
) -> SubmittedJob:
    """Send this package and a config to a cluster, and start `raybcgd train`, `compare` or `sweep` there.

    The cluster needs the package's dependencies, not the package. Put your own modules and files into `working_dir`,
    together with the config. `arguments` are passed to the command. `runtime_env` is a YAML file with more settings of
    Ray's runtime environment, such as `pip`; `env` sets environment variables, as NAME=VALUE.
    """
    experiment = load_config(config, settings)  # report errors before anything is sent
    if resume and out is None and command != "train":
        raise ConfigError(f"--resume auto needs the folder of the {command}; add --out")
    if resume and out is None and experiment.checkpoint.address is None:
        raise ConfigError("--resume auto needs a run to resume; add --out, or set checkpoint.address")
    method = slug(ALGORITHMS.name_of(type(experiment.algorithm))) if command == "train" else command
    label = f"{time.strftime('%Y%m%d-%H%M%S')}-{method}-{secrets.token_hex(2)}"
    folder = _folder(out or label)
    environment = runtime_environment(Path(raybcgd.__file__).parent, runtime_env, env)
    with _cluster_errors(address), _directory(config, working_dir) as (directory, name):
        client = JobSubmissionClient(_dashboard(address))
        client.submit_job(
            entrypoint=_entrypoint(name, settings, folder, resume, command, arguments),
            submission_id=f"{_PREFIX}{label}",
            runtime_env=environment | {"working_dir": str(directory)},
            metadata={"folder": folder},
        )
    return SubmittedJob(f"{_PREFIX}{label}", client.get_address(), folder)


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
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_SECONDS).close()
            return url
        except (OSError, ValueError) as error:
            # Right after `ray start`, the dashboard may not be up yet.
            if not isinstance(error, ConnectionRefusedError) or time.monotonic() > deadline:
                raise _no_cluster(address, error) from None
        time.sleep(_POLL_SECONDS)


def _no_cluster(address: str | None, error: Exception) -> ConfigError:
    return ConfigError(
        f"--address {address or '(default)'}: no Ray cluster answers there ({first_line(error)}); use the address of "
        "its dashboard, such as http://127.0.0.1:8265"
    )


def _entrypoint(
    config: str,
    settings: Sequence[str],
    folder: str,
    resume: bool,
    command: Command = "train",
    arguments: Sequence[str] = (),
) -> str:
    # The node's shell expands $HOME; it would not expand a quoted ~.
    where = f'"$HOME"/{shlex.quote(folder[2:])}' if folder.startswith("~/") else shlex.quote(folder)
    words = [shlex.quote(config), *(f"--set {shlex.quote(text)}" for text in settings), f"--out {where}"]
    words += ["--resume auto"] if resume else []
    return " ".join([f"python -m raybcgd {command}", *words, *map(shlex.quote, arguments)])


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


class JobState(NamedTuple):
    """A job of raybcgd on a cluster."""

    id: str
    status: str
    seconds: float
    """Time since the start or, for a job that has ended, from start to end."""
    folder: str
    last: RoundLine | None
    """The last round in its log."""


def list_jobs(address: str | None = None) -> list[JobState]:
    """Return the jobs of raybcgd on a cluster, the latest first."""
    with _cluster_errors(address):
        client = JobSubmissionClient(_dashboard(address))
        found = [job for job in client.list_jobs() if (job.submission_id or "").startswith(_PREFIX)]
        found.sort(key=lambda job: job.start_time or 0, reverse=True)
        return [_state(client, job) for job in found]


def _state(client: JobSubmissionClient, job: Any) -> JobState:
    try:
        log = client.get_job_logs(job.submission_id)
    except RuntimeError:  # the node with the log is gone
        log = ""
    started = (job.start_time or 0) / 1000
    ended = job.end_time / 1000 if job.end_time else time.time()
    folder = (job.metadata or {}).get("folder", "")
    return JobState(job.submission_id, job.status.value.lower(), max(0.0, ended - started), folder, last_round(log))


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


def stop_own_job() -> None:
    """Stop the Ray job whose driver this process is. Return after Ray's signal, or if the job cannot be stopped.

    Ray may send the signal more than once. It must not interrupt what the process still has to print.
    """
    job = json.loads(os.environ.get(JOB_VARIABLE, "{}")).get("metadata", {}).get("job_submission_id")
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with contextlib.suppress(ConnectionError, RuntimeError, RayError):
        if job is not None:
            JobSubmissionClient().stop_job(job)
            stopped.wait(_STOP_SECONDS)


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
