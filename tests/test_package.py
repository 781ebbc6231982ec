"""The package can be built and published, and the files for GitHub are valid."""

import email
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from raybcgd.version import VERSION

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
GITHUB = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "someone/raybcgd",
    "GITHUB_REF_NAME": f"v{VERSION}",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the source archive and the wheel, built by the commands of the release."""
    folder = tmp_path_factory.mktemp("package")
    for name in ("raybcgd", "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["package"]["steps"]
    scripts = {step["name"]: step["run"] for step in release if "run" in step}
    commands = [scripts["Add the addresses of this repository to the package's metadata"]]
    commands += [line for line in scripts["Build"].splitlines() if not line.startswith("pip install")]
    env = {**os.environ, **GITHUB, "PATH": f"{BIN}:{os.environ['PATH']}"}
    script = "\n".join([*commands, scripts["Fail if the tag is not the package's version"]])
    done = subprocess.run(["bash", "-ec", script], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "dist"


def test_twine_accepts_the_archives(built: Path) -> None:
    files = sorted(str(path) for path in built.iterdir())
    assert [Path(file).name for file in files] == [f"raybcgd-{VERSION}-py3-none-any.whl", f"raybcgd-{VERSION}.tar.gz"]
    done = subprocess.run([BIN / "twine", "check", "--strict", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_contains_the_package_and_its_data(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(f"raybcgd-{VERSION}.dist-info/METADATA"))
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "raybcgd").rglob("*.py")}
    assert modules <= names
    assert {"raybcgd/py.typed", "raybcgd/cluster/monitoring.json"} <= names
    assert not any(name.startswith(("tests/", "dashboards/")) for name in names)
    assert metadata["Version"] == VERSION
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra", [])) >= {"plots", "tensorboard", "mlflow", "wandb", "docs", "dev"}
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert metadata["Requires-Python"] == ">=3.11"
    assert dict(link.split(", ") for link in metadata.get_all("Project-URL", [])) == {
        "Source": "https://github.com/someone/raybcgd",
        "Issues": "https://github.com/someone/raybcgd/issues",
        "Changelog": f"https://github.com/someone/raybcgd/blob/v{VERSION}/CHANGELOG.md",
    }
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        assert f"raybcgd-{VERSION}/raybcgd/cluster/monitoring.json" in archive.getnames()


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", ".github/workflows/*.yml"),
        ("custom.github-workflows-require-timeout", ".github/workflows/*.yml"),
        ("vendor.github-issue-forms", ".github/ISSUE_TEMPLATE/[bf]*.yml"),
        ("vendor.github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("vendor.compose-spec", "cluster/monitoring/compose.yaml"),
    ],
)
def test_the_files_match_their_schemas(schema: str, files: str) -> None:
    paths = sorted(map(str, ROOT.glob(files)))
    assert paths
    done = subprocess.run(
        [BIN / "check-jsonschema", "--builtin-schema", schema, *paths], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ci_runs_the_checks_of_the_repository() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {".ci/run", "make dashboards"} <= set(commands)
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    image = "\n".join(commands)
    lines = (ROOT / "cluster/Dockerfile").read_text().splitlines()
    assert "sed -n 's/^# For nodes without a GPU: --build-arg //p' cluster/Dockerfile" in image
    assert [line for line in lines if line.startswith("# For nodes without a GPU: --build-arg BASE=rayproject/ray:")]


def test_the_changelog_has_a_section_for_this_version() -> None:
    assert f"\n## {VERSION}\n" in (ROOT / "CHANGELOG.md").read_text()
