"""A stranger's run folder executes nothing: neither what its config names nor files that shadow libraries."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raybcgd.cli import app
from raybcgd.config import resume_command
from raybcgd.experiment import run
from raybcgd.storage import RunFolder
from tests.conftest import ONE_BY_ONE, small

TRAP = """
import os, pathlib
pathlib.Path(os.environ["TRAP"]).joinpath(__name__).touch()
raise SystemExit("the trap was imported")
"""
REFERENCES = {
    "algorithm": ("name", "trap:Method"),
    "wire": ("codec", "trap:Codec"),
    "data.partition": ("kind", "trap:Split"),
    "data": ("source", "trap:read"),
    "model": ("name", "trap:Net"),
}
# Libraries that are imported after the current folder is on the path, and a module of the standard library.
SHADOWS = ("safetensors", "tomli_w", "matplotlib", "psutil", "json", "trap", "html", "sklearn")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small(rounds=2, local=ONE_BY_ONE, metrics={"enabled": False})
    return run(config, out=tmp_path_factory.mktemp("runs") / "run").folder


@pytest.fixture
def hostile(finished: Path, tmp_path: Path) -> Path:
    """A downloaded run folder whose files shadow libraries."""
    folder = Path(shutil.copytree(finished, tmp_path / "downloaded"))
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(TRAP)
    (tmp_path / "sprung").mkdir()
    return folder


def name_code(folder: Path, table: str) -> str:
    """Make the folder's config name code in the folder. Return the setting."""
    key, reference = REFERENCES[table]
    lines = (folder / "config.toml").read_text().splitlines()
    at = lines.index(f"[{table}]")
    rest = lines[at + 1 :]
    end = next((k for k, line in enumerate(rest) if line.startswith("[")), len(rest))
    table_lines = [line for line in rest[:end] if not line.startswith(f"{key} =")]
    lines[at + 1 :] = [f'{key} = "{reference}"', *table_lines, *rest[end:]]
    (folder / "config.toml").write_text("\n".join(lines) + "\n")
    return f'{table}.{key} = "{reference}"'


def inside(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command inside a folder."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("raybcgd")), *words],
        cwd=folder,
        env={**os.environ, "TRAP": str(folder.parent / "sprung"), "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def sprung(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder.parent / "sprung").iterdir())


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])])
def test_files_in_the_current_folder_do_not_shadow_libraries(hostile: Path, engine: str) -> None:
    done = inside(hostile, "resume", ".", "--set", "rounds=3", "--set", f"engine={engine}")
    assert sprung(hostile) == []
    assert done.returncode == 0, done.stderr


def test_a_report_imports_nothing_that_the_config_names(hostile: Path) -> None:
    for table in REFERENCES:
        name_code(hostile, table)
    done = inside(hostile, "report", ".")
    assert sprung(hostile) == []
    assert done.returncode == 0, done.stderr
    page = (hostile / "report.html").read_text()
    assert "Method" in page
    assert "trap:Net on digits, 20 clients, trap:Split" in page


def refusal(setting: str) -> str:
    return f"error: {setting} in config.toml names code outside raybcgd; read that code, then add --trust to run it\n"


def test_resume_refuses_code_that_the_config_names(hostile: Path) -> None:
    setting = name_code(hostile, "model")
    done = inside(hostile, "resume", ".", "--set", "rounds=3")
    assert sprung(hostile) == []
    assert (done.returncode, done.stderr) == (2, refusal(setting))


@pytest.mark.parametrize("table", REFERENCES)
def test_resume_refuses_code_in_every_table(hostile: Path, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which saves the time to load torch. The libraries that the folder shadows are loaded already."""
    monkeypatch.setenv("TRAP", str(hostile.parent / "sprung"))
    monkeypatch.chdir(hostile)
    setting = name_code(hostile, table)
    done = CliRunner().invoke(app, ["resume", ".", "--set", "rounds=3"])
    assert sprung(hostile) == []
    assert (done.exit_code, done.stderr) == (2, refusal(setting))


def test_resume_refuses_a_ray_cluster_that_the_config_names(hostile: Path) -> None:
    config = (hostile / "config.toml").read_text()
    (hostile / "config.toml").write_text(config.replace("[hosts]\n", '[hosts]\naddress = "192.0.2.1:6379"\n'))
    done = CliRunner().invoke(app, ["resume", str(hostile)])
    assert done.exit_code == 2
    assert 'hosts.address = "192.0.2.1:6379"' in done.stderr
    assert "--trust" in done.stderr


def test_a_function_of_an_installed_package_needs_trust(hostile: Path) -> None:
    """With the right options, some library functions run any code: unittest.main runs the tests of a folder."""
    config = (hostile / "config.toml").read_text()
    (hostile / "config.toml").write_text(config.replace('name = "mlp"', 'name = "unittest:main"'))
    done = CliRunner().invoke(app, ["resume", str(hostile)])
    assert done.exit_code == 2
    assert "names code outside raybcgd" in done.stderr


def test_a_config_that_extends_another_file_is_not_followed(hostile: Path) -> None:
    (hostile / "base.toml").write_text('[algorithm]\nname = "trap:Method"\n')
    config = (hostile / "config.toml").read_text()
    (hostile / "config.toml").write_text('extends = "base.toml"\n' + config)
    done = inside(hostile, "resume", ".")
    assert (done.returncode, sprung(hostile)) == (2, [])
    assert "extends" in done.stderr


METHOD = """
from raybcgd.algorithms.fedavg import FedAvg
class Method(FedAvg):
    name = "method"
"""


def own_method(folder: Path, path: Path | None, *words: str) -> None:
    """Run the installed command in a folder, with another one on Python's path."""
    paths = [str(path or ""), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [str(Path(sys.executable).with_name("raybcgd")), *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a method in `lib` and beside the config, and a run of it."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "lib").mkdir()
    for file in (folder / "own.py", folder / "lib" / "own.py"):
        file.write_text(METHOD)
    tables = {"algorithm": {"name": "fedavg"}, "checkpoint": {"every": 1}, "metrics": {"enabled": False}}
    config = small(rounds=1, local=ONE_BY_ONE, **tables)
    (folder / "config.toml").write_text(config.to_toml().replace('name = "fedavg"', 'name = "own:Method"'))
    own_method(folder, None, "train", "config.toml", "--out", "run")
    return folder


@pytest.mark.parametrize(
    ("words", "on_path"),
    [(["--trust"], False), (["--set", "algorithm.name=own:Method"], False), ([], True)],
    ids=["trust", "command line", "installed"],
)
def test_code_that_the_user_approved_is_imported(
    trained: Path, tmp_path: Path, words: list[str], on_path: bool
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "own"))
    if on_path:
        (folder / "own.py").unlink()
    own_method(folder, folder / "lib" if on_path else None, "resume", "run", "--set", "rounds=2", *words)


def test_the_resume_command_of_a_message_quotes_the_folder() -> None:
    assert resume_command({}, RunFolder(Path("runs/a b"))) == "raybcgd resume 'runs/a b'"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["beside the config", "elsewhere"])
def test_the_resume_command_of_a_message_works_for_own_code(trained: Path, tmp_path: Path, elsewhere: bool) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "own"))
    here = tmp_path if elsewhere else folder
    command = [sys.executable, "-m", "raybcgd", "train", str(folder / "config.toml"), "--out", str(folder / "run")]
    refused = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    shown = refused.stderr.split("`")[1]
    assert shown == f"{f'PYTHONPATH={folder} ' if elsewhere else ''}raybcgd resume {folder / 'run'} --trust"
    paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PATH": f"{Path(sys.executable).parent}:/bin:/usr/bin"}
    line = f"{shown} --set rounds=2".replace("PYTHONPATH=", "PYTHONPATH=$PYTHONPATH:")
    done = subprocess.run(
        line, shell=True, cwd=here, env={**os.environ, **paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
