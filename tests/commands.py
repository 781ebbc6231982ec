"""Commands of the documentation, run in this process, which saves the time to load torch."""

import os
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner

from raybcgd.cli.app import app


def execute(command: str) -> str:
    """Run a command. Return what `raybcgd` or `pytest` printed."""
    program, *arguments = shlex.split(command)
    if program == "raybcgd":
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, f"{command}\n{result.output}"
        return result.output
    if program == "pytest":
        words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
    if program == "python":
        runpy.run_path(arguments[0], run_name="__main__")
    elif program == "mkdir":
        os.mkdir(arguments[0])
    else:
        assert program == "cd", command
        os.chdir(arguments[0])
    return ""


@contextmanager
def modules_of(folder: Path) -> Iterator[None]:
    """Let Python import the modules in a folder, and forget them at the end."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for path in folder.glob("*.py"):
            sys.modules.pop(path.stem, None)
