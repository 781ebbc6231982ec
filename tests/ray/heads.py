"""Ray heads started with `ray start`, as users do, each with its own ports and folder."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import free_port
from tests.ray.conftest import NO_SPARE_WORKERS, SETTINGS

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
HEAD_ID = "f" * 51 + "00000"
"""The fake provider numbers its nodes from here."""


@dataclass
class Head:
    """A running head. Its HOME is a temporary folder."""

    port: int
    dashboard: str
    home: Path
    env: dict[str, str]
    processes: list[psutil.Process] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def raybcgd(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a raybcgd command in the environment of the head."""
        command = [sys.executable, "-m", "raybcgd", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env={**self.env, **env}, capture_output=True, text=True, timeout=400, check=False
        )

    def runs(self) -> list[Path]:
        """Return the folders of the runs that were started without `--out`."""
        return sorted((self.home / "raybcgd-runs").glob("*"))


@contextlib.contextmanager
def head(
    *arguments: str, dashboard: bool = True, autoscaling: Mapping[str, Any] | None = None, **env: str
) -> Iterator[Head]:
    """Run `ray start --head`, and stop the processes that it started, but no others."""
    folder = Path(tempfile.mkdtemp(prefix="rb-"))  # the paths of Ray's sockets must be short
    port, page = free_port(), free_port()
    environment = {**os.environ, **SETTINGS, **NO_SPARE_WORKERS, "HOME": str(folder)}
    environment |= {"PATH": f"{BIN}:{os.environ['PATH']}", **env}
    for name in ("RAY_ADDRESS", "PYTHONPATH"):
        environment.pop(name, None)
    command = [str(BIN / "ray"), "start", "--head", "--block", f"--port={port}", f"--temp-dir={folder}/ray"]
    command += [f"--dashboard-port={page}", "--dashboard-host=127.0.0.1", f"--include-dashboard={dashboard}"]
    command += ["--node-ip-address=127.0.0.1", "--min-worker-port=0", "--max-worker-port=0"]
    command += [
        f"--ray-client-server-port={_port_outside_worker_range()}",
        "--dashboard-agent-listen-port=0",
        *arguments,
    ]
    if autoscaling is not None:
        config = folder / "autoscaling.json"
        config.write_text(json.dumps(_fake_provider(autoscaling, f"127.0.0.1:{port}")))
        command.append(f"--autoscaling-config={config}")
        environment |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_enable_autoscaler_v2": "0"}
        environment["RAY_OVERRIDE_NODE_ID_FOR_TESTING"] = HEAD_ID
    log = (folder / "log").open("w")
    started = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    environment.pop("RAY_OVERRIDE_NODE_ID_FOR_TESTING", None)
    try:
        _wait_for_start(started, folder / "log")
        yield Head(port, f"http://127.0.0.1:{page}", folder, environment)
    finally:
        _stop(started, folder)
        shutil.rmtree(folder, ignore_errors=True)


def _port_outside_worker_range() -> int:
    while 10002 <= (port := free_port()) <= 19999:
        pass
    return port


def _wait_for_start(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 90
    while "Ray runtime started" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"ray start failed: {log.read_text()}")
        time.sleep(0.2)


def _stop(started: subprocess.Popen[bytes], folder: Path) -> None:
    """Stop the child processes, and everything that runs in this head's folder, such as nodes of the fake provider."""
    mine = psutil.Process(started.pid).children(recursive=True) if started.poll() is None else []
    started.terminate()
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in process.info["cmdline"] or ()):
            mine.append(process)
    for process in {process.pid: process for process in mine}.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.wait(20)
    started.kill()


def _fake_provider(changes: Mapping[str, Any], gcs_address: str) -> dict[str, Any]:
    """Return a cluster file whose nodes are more raylets on this machine."""
    commands = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    empty: dict[str, Any] = {f"{name}_commands": [] for name in commands}
    empty |= {name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")}
    return {
        "cluster_name": "fake",
        "max_workers": 8,
        "upscaling_speed": 100.0,
        "idle_timeout_minutes": 0.1,
        "docker": {},
        "auth": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **empty,
        "head_node_type": "ray.head.default",
        "provider": {
            "type": "fake_multinode",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "gcs_address": gcs_address,
            "head_node_id": HEAD_ID,
        },
        **changes,
    }
