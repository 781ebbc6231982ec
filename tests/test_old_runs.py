"""Run folders of another version of raybcgd are refused with one line."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raybcgd import ConfigError, run
from raybcgd.analysis.analyst import analyse_run
from raybcgd.cli import app
from raybcgd.storage import FORMAT_VERSION
from tests.conftest import small


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(small(rounds=2), out=tmp_path_factory.mktemp("runs") / "run").folder


@pytest.fixture(
    params=["", f"version = {FORMAT_VERSION - 1}\n", f"version = {FORMAT_VERSION + 1}\n"], ids=["none", "old", "new"]
)
def other_version(request: pytest.FixtureRequest, finished: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    line = f"version = {FORMAT_VERSION}\n"
    config = (folder / "config.toml").read_text()
    assert config.startswith(line)
    (folder / "config.toml").write_text(request.param + config.removeprefix(line))
    return folder


def by_command(command: str) -> Callable[[Path], str]:
    def refusal(folder: Path) -> str:
        done = CliRunner().invoke(app, [command, str(folder)])
        assert done.exit_code == 2, done.output
        return done.stderr

    return refusal


def by_analysis(folder: Path) -> str:
    with pytest.raises(ConfigError) as error:
        analyse_run(folder)
    return f"error: {error.value}\n"


@pytest.mark.parametrize(
    "refusal", [by_command("resume"), by_command("report"), by_analysis], ids=["resume", "report", "analysis"]
)
def test_a_run_folder_of_another_version_is_refused(other_version: Path, refusal: Callable[[Path], str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in other_version.rglob("*")}
    assert refusal(other_version) == (
        f"error: {other_version} was written by another version of raybcgd (its config.toml has no version = "
        f"{FORMAT_VERSION}); use that version, or start the run again with `raybcgd train`\n"
    )
    assert {path: path.stat().st_mtime_ns for path in other_version.rglob("*")} == before


def test_a_run_folder_of_this_version_is_accepted(finished: Path) -> None:
    assert analyse_run(finished)["rounds"] == 2
