"""`raybcgd submit` without a cluster: the command that it sends, and the input that it refuses."""

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from raybcgd.cli import app
from raybcgd.submit import _entrypoint
from tests.conftest import small

UNREACHABLE = "http://127.0.0.1:9"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(small(engine="ray").to_toml())
    return path


def submit(config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["submit", str(config), "--address", UNREACHABLE, *arguments])


def test_an_unreachable_address_is_refused(config: Path) -> None:
    done = submit(config)
    assert done.exit_code == 2
    assert done.output.startswith(f"error: --address {UNREACHABLE}: no Ray cluster answers there"), done.output
    assert done.output.count("\n") == 1


def test_resume_auto_needs_a_folder_or_an_address(config: Path) -> None:
    done = submit(config, "--resume", "auto")
    assert done.exit_code == 2
    assert "add --out, or set checkpoint.address" in done.output


def test_the_config_must_be_in_the_working_directory(config: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    done = submit(config, "--working-dir", str(tmp_path / "other"))
    assert done.exit_code == 2
    assert done.output.startswith(f"error: {config} is not in --working-dir")
    child = tmp_path / "other" / "child.toml"
    child.write_text(f'extends = "../{config.name}"\n')
    done = submit(child, "--working-dir", str(tmp_path / "other"))
    assert done.exit_code == 2
    assert f"{config.name} is not in --working-dir" in done.output


def test_an_invalid_address_is_refused(config: Path) -> None:
    done = submit(config, "--address", "nonsense")
    assert done.exit_code == 2
    assert "--address nonsense: no Ray cluster answers there" in done.output


def test_arguments_are_quoted_for_the_shell() -> None:
    line = _entrypoint("my config.toml", ["algorithm.name='a b'", "seed=1; rm -r x"], "~/runs/it's", resume=True)
    words = shlex.split(line)
    assert words[:4] == ["python", "-m", "raybcgd", "train"]
    assert words[4:] == [
        "my config.toml",
        *("--set", "algorithm.name='a b'", "--set", "seed=1; rm -r x"),
        *("--out", "$HOME/runs/it's", "--resume", "auto"),
    ]
