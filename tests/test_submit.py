"""`raybcgd submit` without a cluster: the command that it sends, and the input that it refuses."""

import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import raybcgd
from raybcgd.cli import app
from raybcgd.runtime_env import runtime_environment
from raybcgd.submit import _entrypoint, _folder
from tests.conftest import small

UNREACHABLE = "http://127.0.0.1:9"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(small(engine="ray").to_toml())
    return path


def submit(config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["submit", str(config), "--address", UNREACHABLE, *arguments])


def test_an_unreachable_address_is_refused(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raybcgd.submit._CONNECT_SECONDS", 0.5)
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


def test_an_address_needs_no_scheme_and_is_refused_within_seconds(config: Path) -> None:
    """Ray would look for its control store there, and retry for 45 seconds."""
    began = time.perf_counter()
    done = submit(config, "--address", "127.0.0.1:9")
    assert done.exit_code == 2
    assert "--address 127.0.0.1:9: no Ray cluster answers there" in done.output
    assert time.perf_counter() - began < 15


@pytest.mark.parametrize(
    ("out", "folder"),
    [("first", "~/raybcgd-runs/first"), ("~/x/first", "~/x/first"), ("/shared/first", "/shared/first")],
)
def test_a_relative_folder_is_not_in_the_working_directory_of_the_job(out: str, folder: str) -> None:
    assert _folder(out) == folder


def test_a_bucket_is_not_a_folder(config: Path) -> None:
    done = submit(config, "--out", "s3://bucket/first")
    assert done.exit_code == 2
    assert "--out s3://bucket/first is not a folder" in done.output


def test_a_relative_folder_in_a_job_is_in_the_home_folder(config: Path, tmp_path: Path) -> None:
    """Also if the job was submitted with `ray job submit`."""
    env = {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}", "HOME": str(tmp_path / "home")}
    arguments = ["train", str(config), "--set", "engine=local", "--set", "rounds=1", "--out"]
    for out, folder in (("first", tmp_path / "home/raybcgd-runs/first"), (str(tmp_path / "here"), tmp_path / "here")):
        done = CliRunner().invoke(app, [*arguments, out], env=env)
        assert done.exit_code == 0, done.output
        assert (folder / "summary.json").exists()


def test_other_commands_get_their_own_options() -> None:
    line = _entrypoint("c.toml", ["seed=1"], "/x", False, "sweep", ["--grid", "algorithm.lr=0.1,0.2"])
    assert line == "python -m raybcgd sweep c.toml --set seed=1 --out /x --grid algorithm.lr=0.1,0.2"


def test_a_comparison_and_a_sweep_resume_in_their_folder(config: Path) -> None:
    done = submit(config, "--resume", "auto", "--command", "sweep")
    assert done.exit_code == 2
    assert "--resume auto needs the folder of the sweep; add --out" in done.output
    assert _entrypoint("c.toml", [], "/x", True, "compare") == "python -m raybcgd compare c.toml --out /x --resume auto"


def test_the_environment_of_a_job_is_merged(tmp_path: Path) -> None:
    file = tmp_path / "env.yaml"
    file.write_text("pip: [mlflow]\npy_modules: [mine]\nenv_vars: {A: 1, B: 2}\n")
    assert runtime_environment(Path("/pkg"), file, ["B=3", "C=x=y"]) == {
        "excludes": ["runs"],
        "pip": ["mlflow"],
        "py_modules": ["/pkg", "mine"],
        "env_vars": {"A": "1", "B": "3", "C": "x=y"},
    }
    assert runtime_environment(Path("/pkg")) == {"excludes": ["runs"], "py_modules": ["/pkg"]}


def test_a_job_gets_the_packages_to_install(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, Any] = {}

    class Client:
        def __init__(self, address: str) -> None:
            self.get_address = lambda: address

        def submit_job(self, **job: Any) -> None:
            sent.update(job)

    (tmp_path / "env.yaml").write_text("pip: [mlflow, 'raybcgd[wandb]']\n")
    monkeypatch.setattr("raybcgd.submit.JobSubmissionClient", Client)
    monkeypatch.setattr("raybcgd.submit._dashboard", lambda address: address)
    done = submit(config, "--runtime-env", str(tmp_path / "env.yaml"), "--env", "A=1", "--no-wait")
    assert done.exit_code == 0, done.output
    assert sent["runtime_env"]["pip"] == ["mlflow", "raybcgd[wandb]"]
    assert sent["runtime_env"]["env_vars"] == {"A": "1"}
    assert sent["runtime_env"]["py_modules"] == [str(Path(raybcgd.__file__).parent)]
    assert sent["metadata"]["folder"] in done.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read --runtime-env"),
        ("a: [", "is not valid YAML"),
        ("3", "is not a table of settings"),
        ("working_dir: .", "sets working_dir; use --working-dir instead"),
    ],
)
def test_a_wrong_environment_is_refused(config: Path, tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "env.yaml"
    if text is not None:
        file.write_text(text)
    done = submit(config, "--runtime-env", str(file))
    assert done.exit_code == 2
    assert message in done.output
    assert done.output.count("\n") == 1
    assert "--env x: write it as NAME=VALUE" in submit(config, "--env", "x").output


def test_arguments_are_quoted_for_the_shell() -> None:
    line = _entrypoint("my config.toml", ["algorithm.name='a b'", "seed=1; rm -r x"], "~/runs/it's", resume=True)
    words = shlex.split(line)
    assert words[:4] == ["python", "-m", "raybcgd", "train"]
    assert words[4:] == [
        "my config.toml",
        *("--set", "algorithm.name='a b'", "--set", "seed=1; rm -r x"),
        *("--out", "$HOME/runs/it's", "--resume", "auto"),
    ]
