"""The commands of the README work as they are, on a machine with nothing on it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ray.heads import BIN, ROOT

ALONE = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
ALONE += [] if os.getuid() == 0 else ["--map-root-user"]
PREPARE = 'ip link set lo up && mount --bind "$0" /tmp && chmod 1777 /tmp && mkdir /tmp/home && exec "$@"'


def can_be_alone() -> bool:
    """Return whether this user may create namespaces, and whether nothing that the test needs is in /tmp."""
    if shutil.which("unshare") is None or any(path.is_relative_to("/tmp") for path in (ROOT, BIN)):
        return False
    return subprocess.run([*ALONE, "ip", "link"], capture_output=True, check=False).returncode == 0


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus (Debian's package) is not installed")
@pytest.mark.skipif(not can_be_alone(), reason="this user cannot create namespaces")
def test_the_commands_of_the_readme_work_the_first_time(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY", "PYTEST"))}
    env |= {"HOME": "/tmp/home", "PATH": f"{BIN}:{env['PATH']}", "PYTHONPATH": str(ROOT)}
    command = [*ALONE, "bash", "-c", PREPARE, str(tmp_path), sys.executable, "-m", "tests.ray.first_time"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=500, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
