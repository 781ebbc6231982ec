"""`raybcgd new`: the project runs exactly as its README says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raybcgd.cli import app
from tests.commands import execute, modules_of


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = CliRunner().invoke(app, ["new", str(tmp_path / "deep" / "project")])
    assert made.exit_code == 0, made.output
    assert f"cd {tmp_path}/deep/project && raybcgd train config.toml" in made.output
    return tmp_path / "deep" / "project"


def blocks(project: Path) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```$", (project / "README.md").read_text(), re.M | re.S)


def execute_in_a_shell(commands: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = ["bash", "-euo", "pipefail", "-c", commands]
    done = subprocess.run(script, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_commands_of_the_readme_work_as_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = blocks(project)
    monkeypatch.chdir(project)
    with modules_of(project):
        shown = "".join(execute(command) for command in first.splitlines())
    assert "clinic 00, clinic 01" in shown
    assert "2 passed" in shown
    assert (project / "runs/compare/report.html").exists()


@pytest.mark.slow
@pytest.mark.ray
def test_the_sweep_of_the_readme_works_as_written(project: Path) -> None:
    _, second = blocks(project)
    assert "test data was not used" in execute_in_a_shell(second, project)


def test_a_folder_that_cannot_be_used_gives_one_line(project: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, message in ((project, "is not empty; choose a new folder"), (tmp_path / "file", "cannot write to")):
        before = {path.name for path in tmp_path.rglob("*")}
        refused = CliRunner().invoke(app, ["new", str(folder)])
        assert refused.exit_code == 2
        assert re.fullmatch(rf"error: .*{message}.*\n", refused.output), refused.output
        assert {path.name for path in tmp_path.rglob("*")} == before
