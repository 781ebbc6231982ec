"""Run installation steps as an ordinary user in a fresh home with its own Python environment."""

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

from raybcgd.version import VERSION

OTHER_USER = 1000
AS_ROOT = os.getuid() == 0


class Home:
    """The home folder of an ordinary user. Its Python sees the packages that are installed here.

    If the tests run as root, the commands run without root's privileges, and protected files belong to someone else:
    another user could perhaps not read the Python that runs the tests.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "home"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.path / "env")], check=True)
        (packages,) = (self.path / "env/lib").glob("python*/site-packages")
        # Python does not read .pth files in this folder, so an editable installation of raybcgd is not visible.
        (packages / "installed.pth").write_text("\n".join(site.getsitepackages()) + "\n")
        (self.path / "env/bin/pip").write_text(f'#!/bin/sh\nexec {self.path}/env/bin/python -m pip "$@"\n')
        (self.path / "env/bin/pip").chmod(0o755)

    def protect(self, path: Path) -> None:
        """Let the user read a folder, but not write to it."""
        for one in (path, *path.rglob("*")):
            one.chmod(0o555 if one.is_dir() else 0o444)
            if AS_ROOT:
                os.chown(one, OTHER_USER, OTHER_USER, follow_symlinks=False)

    def run(self, command: str, cwd: Path | None = None, path: Path | str = "") -> subprocess.CompletedProcess[str]:
        """Run a shell command as the user."""
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
        drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"] if AS_ROOT else []
        return subprocess.run(
            [*drop, "bash", "-c", command],
            cwd=cwd or self.path,
            env={**kept, "HOME": str(self.path), "PATH": f"{path}:{self.path}/env/bin:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )

    def check_installation(self) -> None:
        """Check that the installed package is complete: a copy of the sources, with its data and version."""
        done = self.run(
            'cd / && python -c "import os, raybcgd, raybcgd.cluster.monitoring as m; from importlib.metadata import '
            "version; print(raybcgd.__file__, os.environ['MKL_CBWR'], version('raybcgd'), (m.files('raybcgd.cluster') "
            "/ 'monitoring.json').is_file())\""
        )
        assert done.returncode == 0, done.stderr
        file, *facts = done.stdout.split()
        assert file.startswith(str(self.path / "env"))
        assert facts == ["AUTO,STRICT", VERSION, "True"]


def copy(source: Path, target: Path) -> None:
    """Copy a file or folder without compiled files."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy(source, target)
