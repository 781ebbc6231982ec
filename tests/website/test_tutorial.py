"""The tutorial: every file and every command, exactly as written."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from results.store import Store
from tests.commands import execute, modules_of

ROOT = Path(__file__).parents[2]
SETUP = ["make demo", "source .venv/bin/activate"]


class Step(NamedTuple):
    """A file to save, or a command if it has no name."""

    name: str | None
    text: str


def steps() -> Iterator[Step]:
    text = (ROOT / "docs/tutorial.md").read_text()
    for language, name, content in re.findall(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', text, re.M | re.S):
        assert bool(name) == (language != "bash"), content
        if name:
            yield Step(name, content)
        else:
            yield from (Step(None, line) for line in content.splitlines())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    with modules_of(tmp_path / "study"):
        yield tmp_path


def accuracy(run: Path) -> float:
    return float(json.loads((run / "summary.json").read_text())["final_accuracy"])


def check(study: Path) -> None:
    """The runs of the tutorial are there, and its methods learn."""
    runs = study / "runs"
    assert len((runs / "first/rounds.jsonl").read_text().splitlines()) == 15
    assert (runs / "first/report.html").exists()
    assert (runs / "methods/comparison.png").exists()
    for name in ("first", "own/fedbcgd", "python", "compressed"):
        assert accuracy(runs / name) > 0.75, name
    assert "LookAhead" in (runs / "method/comparison.md").read_text()


def test_every_command_works_as_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [text for name, text in steps() if name is None]
    assert commands[:2] == SETUP  # run by the slow test below
    for name, text in steps():
        if name is not None:
            Path(name).write_text(text)
        elif text not in SETUP:
            for command in text.split(" && "):
                execute(command)
    assert re.search(r"accuracy 0\.\d{3}, upload \d+\.\d\d d per client", capsys.readouterr().out)
    check(folder / "study")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_every_command_works_in_a_shell_from_the_demo_on(tmp_path: Path) -> None:
    if not (Path(sys.prefix) / ".installed").exists():
        pytest.skip("this environment was not made by `make install`")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
        os.utime(tmp_path / name, (0, 0))  # older than the environment, which is therefore not installed again
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    lines = [f"cat > {name} <<'END'\n{text}END" if name else text for name, text in steps()]
    done = subprocess.run(["bash", "-e"], input="\n".join(lines), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (demo,) = (tmp_path / "runs").iterdir()
    assert (demo / "comparison.md").exists()
    stored = [run for run in Store("demo").of("final") if run["seed"] == 0]
    if {run["versions"]["cpu"] for run in stored} == {torch.backends.cpu.get_cpu_capability()}:
        found = {json.loads(path.read_text())["sha256"] for path in demo.glob("*/summary.json")}
        assert found == {run["sha256"] for run in stored}, "results/demo.json has other weights than `make demo`"
    check(tmp_path / "study")
