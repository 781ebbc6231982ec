"""[Ray] An experiment as a job on a cluster: what is sent, what its log says, and how it ended."""

import asyncio
import contextlib
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from aiohttp import ClientError
from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

import raybcgd
from raybcgd.config import load_config
from raybcgd.config.files import config_files, read_tables
from raybcgd.errors import ConfigError, RunError
from raybcgd.storage import JOB_RUNS

_POLL_SECONDS = 1.0
_SIGNALLED = 128
"""What shells add to the number of the signal that has ended a program."""


@dataclass(frozen=True)
class Job:
    """A job that was submitted."""

    id: str
    address: str
    folder: str
    """Where its files go, on the node where its driver runs: the head, unless the cluster is told otherwise."""


def submit(
    config: Path,
    *,
    address: str | None = None,
    settings: Sequence[str] = (),
    out: str | None = None,
    resume: bool = False,
    working_dir: Path | None = None,
) -> Job:
    """Send this package and a config to a cluster, and start `raybcgd train` there.

    The cluster needs the package's dependencies, not the package. Modules and files of one's own travel in
    `working_dir`, and the config is then one of its files.
    """
    experiment = load_config(config, settings)  # what is wrong is said here, before anything is sent
    if resume and out is None and experiment.checkpoint.address is None:
        raise ConfigError("--resume auto needs the run's folder; give --out, or set checkpoint.address")
    label = f"{time.strftime('%Y%m%d-%H%M%S')}-{experiment.algorithm.name.replace('+', '_plus')}-{secrets.token_hex(2)}"
    folder = out or f"~/{JOB_RUNS}/{label}"
    with _answering(address), _to_send(config, working_dir) as (directory, name):
        client = JobSubmissionClient(address)
        package = str(Path(raybcgd.__file__).parent)
        client.submit_job(
            entrypoint=_entrypoint(name, settings, folder, resume),
            submission_id=f"raybcgd-{label}",
            runtime_env={"working_dir": str(directory), "py_modules": [package], "excludes": ["runs"]},
        )
    return Job(f"raybcgd-{label}", client.get_address(), folder)


def _entrypoint(config: str, settings: Sequence[str], folder: str, resume: bool) -> str:
    # The shell of the node knows its home folder; within quotes it would not look for one.
    where = f'"$HOME"/{shlex.quote(folder[2:])}' if folder.startswith("~/") else shlex.quote(folder)
    words = [shlex.quote(config), *(f"--set {shlex.quote(text)}" for text in settings), f"--out {where}"]
    return " ".join(["python -m raybcgd train", *words, *(["--resume auto"] if resume else [])])


@contextlib.contextmanager
def _to_send(config: Path, working_dir: Path | None) -> Iterator[tuple[Path, str]]:
    """The folder to send, and the config's name in it."""
    if working_dir is not None:
        for file in config_files(config):
            if not file.resolve().is_relative_to(working_dir.resolve()):
                raise ConfigError(f"{file} is not in --working-dir {working_dir}; put it there, or name another folder")
        yield working_dir, str(config.resolve().relative_to(working_dir.resolve()))
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / config.name).write_text(tomli_w.dumps(read_tables(config)))  # whatever it extends is in it
        yield Path(folder), config.name


def follow(job: Job, say: Callable[[str], None]) -> int:
    """Pass the job's log on as it is written, until the job has ended; its exit code."""
    with _answering(job.address):
        client = JobSubmissionClient(job.address)
        asyncio.run(_follow(client, job, say))
        info: Any = client.get_job_info(job.id)
    if info.status == JobStatus.SUCCEEDED:
        return 0
    code = info.driver_exit_code
    if code is None:  # it never came to run, or was stopped
        raise RunError(f"job {job.id}: {info.status.value.lower()}: {' '.join((info.message or '').split())}")
    return int(code) if code >= 0 else _SIGNALLED - int(code)


async def _follow(client: JobSubmissionClient, job: Job, say: Callable[[str], None]) -> None:
    seen = 0
    while True:
        known = seen  # a new connection begins at the log's beginning
        with contextlib.suppress(RuntimeError, ClientError):  # a connection that was cut: go on where it was
            async for text in client.tail_job_logs(job.id):
                fresh = text[known:]
                known -= min(known, len(text))
                seen += len(fresh)
                if fresh:
                    say(fresh)
        if client.get_job_status(job.id).is_terminal():
            return
        await asyncio.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _answering(address: str | None) -> Iterator[None]:
    """A cluster that does not answer, or refuses, as one line."""
    try:
        yield
    except (RunError, ConfigError):
        raise
    except (ConnectionError, ValueError) as error:
        raise ConfigError(
            f"--address {address}: no Ray cluster answers there ({_first_line(error)}); give the address of its "
            "dashboard, such as http://127.0.0.1:8265"
        ) from None
    except (RuntimeError, RayError) as error:
        where = f" at {address}" if address else " that Ray found"
        raise RunError(f"the cluster{where} refuses: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
