"""Wrong inputs: configs, data, models and run folders. Each gives one line that names what to change."""

import re
import shutil
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

from raybcgd.cli import app
from tests.test_cli import SMALL
from tests.wrong.case import Case
from tests.wrong.configs import FILES, VALUES
from tests.wrong.data import DATA
from tests.wrong.own_code import OWN_CODE
from tests.wrong.runs import RUNS

CASES: dict[str, Case] = {**FILES, **VALUES, **OWN_CODE, **DATA, **RUNS}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run. Every test gets a copy."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "config.toml").write_text(tomli_w.dumps(SMALL))
    result = CliRunner().invoke(app, ["train", str(folder / "config.toml"), "--out", str(folder / "run")])
    assert result.exit_code == 0, result.output
    return folder / "run"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_input_gives_one_line_and_loses_nothing(
    name: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    (tmp_path / "config.toml").write_text(tomli_w.dumps(SMALL))
    shutil.copytree(finished, tmp_path / "run")
    case.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = contents(tmp_path)

    def filled(text: str) -> str:
        paths = {"tmp": tmp_path, "config": tmp_path / "config.toml", "out": tmp_path / "out", "run": tmp_path / "run"}
        return re.sub(r"\{(tmp|config|out|run)\}", lambda match: str(paths[match[1]]), text)

    result = CliRunner().invoke(app, [filled(argument) for argument in case.arguments])
    assert result.exit_code == case.code, result.output
    # Warnings about files that are skipped may come first.
    lines = [line for line in result.stderr.splitlines() if not line.startswith("skipping the damaged checkpoint")]
    assert len(lines) == 1, result.stderr
    pattern = ".*".join(re.escape(part) for part in filled(case.says).split(" … "))
    assert re.match(f"error: {pattern}", lines[0]), lines[0]
    assert "Traceback" not in result.output
    after = contents(tmp_path)
    assert {path: after.get(path) for path in before} == before
    assert case.code == 1 or not (tmp_path / "out").exists()


def test_there_are_at_least_a_hundred_cases() -> None:
    assert len(CASES) >= 100
