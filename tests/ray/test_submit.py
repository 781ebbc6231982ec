"""Jobs submitted from the command line to a real head with token authentication: followed, failed or refused."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raybcgd import run
from raybcgd.cli import app
from raybcgd.config import load_config
from tests.cluster.shipped import objects
from tests.conftest import ONE_BY_ONE, small
from tests.dashboards.server import until
from tests.ray.heads import BIN, ROOT, Head, head

pytestmark = pytest.mark.ray

TOKEN = "a-token-for-tests-" + "0" * 24


@pytest.fixture(scope="module")
def cluster() -> Iterator[Head]:
    with head("--num-cpus=2", "--num-gpus=0", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN) as started:
        yield started


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(small(engine="ray", local=ONE_BY_ONE, hosts={"count": 1}).to_toml())
    return path


def ask(cluster: Head, path: str, **body: Any) -> Any:
    """Ask the job API. Ray's own client would not work here: it reads the authentication mode only once."""
    request = urllib.request.Request(
        f"{cluster.dashboard}/api/jobs/{path}",
        json.dumps(body).encode() if body else None,
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def jobs(cluster: Head) -> list[dict[str, Any]]:
    """Return the cluster's jobs."""
    found: list[dict[str, Any]] = ask(cluster, "")
    return found


def test_a_job_is_followed_to_its_end_and_its_folder_is_printed(cluster: Head, config: Path, tmp_path: Path) -> None:
    done = cluster.raybcgd("submit", str(config), "--address", cluster.dashboard, "--set", "rounds=5")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert any("round 5/5  accuracy" in line for line in lines), lines
    (folder,) = [line.removeprefix("files: ").split(" on ")[0] for line in lines if line.startswith("files: ~/")]
    there = Path(folder.replace("~", str(cluster.home)))
    assert there in cluster.runs()
    assert any(line.startswith("files: ") and line.endswith(f":{there}") for line in lines), lines
    summary = json.loads((there / "summary.json").read_text())
    assert {path.name for path in there.iterdir()} >= {"config.toml", "rounds.jsonl", "final.safetensors"}
    here = run(load_config(config, ["rounds=5", "engine=local"]), out=tmp_path / "local")
    assert summary["sha256"] == here.summary["sha256"]


LOSS = """
import json, os
from pathlib import Path
import torch
import raybcgd

def loss(outputs, targets, **options):
    import helper
    found = {"package": raybcgd.__file__, "helper": helper.__file__, **os.environ}
    Path(os.environ["FOUND"], f"{os.getpid()}.json").write_text(json.dumps(found))
    return torch.nn.functional.cross_entropy(outputs, targets, **options)
"""


def test_modules_variables_and_the_package_travel_with_a_job(cluster: Head, config: Path, tmp_path: Path) -> None:
    """The loss is in the working directory. It notes, in the driver and in a host, where everything is from."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project/mine.py").write_text(LOSS)
    there = config.rename(tmp_path / "project/small.toml")
    for folder in ("helper", "found"):
        (tmp_path / folder).mkdir()
    (tmp_path / "helper/__init__.py").touch()
    (tmp_path / "env.yaml").write_text(f"py_modules: [{tmp_path}/helper]\nenv_vars: {{FROM: 7}}\n")
    arguments = ["--working-dir", str(there.parent), "--runtime-env", str(tmp_path / "env.yaml")]
    variables = ["--env", "SET=a b=c", "--env", f"FOUND={tmp_path / 'found'}"]
    settings = ["--set", "rounds=2", "--set", "model.loss=mine:loss"]
    done = cluster.raybcgd("submit", str(there), "--address", cluster.dashboard, *arguments, *variables, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(path.read_text()) for path in (tmp_path / "found").iterdir()]
    assert len(found) >= 2, "the driver and a host"
    for one in found:
        assert (one["SET"], one["FROM"]) == ("a b=c", "7")
        assert "/py_modules_files/" in one["package"], "not the one that is installed on the node"
        assert "/py_modules_files/" in one["helper"]


@pytest.mark.slow
def test_resume_auto_resumes_the_run_in_the_folder(cluster: Head, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "run with a space"
    submit = ("submit", str(config), "--address", cluster.dashboard, "--out", str(out), "--resume", "auto")
    for rounds in (2, 4):
        done = cluster.raybcgd(*submit, "--set", f"rounds={rounds}")
        assert done.returncode == 0, done.stdout + done.stderr
    assert "round 3/4" in done.stdout
    assert "round 2/4" not in done.stdout
    here = run(load_config(config, ["engine=local"]), out=tmp_path / "local")
    assert json.loads((out / "summary.json").read_text())["sha256"] == here.summary["sha256"]


@pytest.mark.slow
def test_an_error_found_only_on_the_cluster_fails_the_job_with_one_line(cluster: Head, config: Path) -> None:
    done = cluster.raybcgd("submit", str(config), "--address", cluster.dashboard, "--set", "hosts.count=99")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "error: hosts.count = 99 requires 99 hosts of 1 CPU each, but only 2 fit" in done.stdout
    (name,) = [line.removeprefix("job: ") for line in done.stdout.splitlines() if line.startswith("job: ")]
    (job,) = [job for job in jobs(cluster) if job["submission_id"] == name]
    assert (job["status"], job["driver_exit_code"]) == ("FAILED", 2)


@pytest.mark.parametrize(
    ("settings", "status", "message"),
    [
        pytest.param(
            ["data.source=fashion_mnist", "data.root=/nowhere"],
            "STOPPED",
            "error: data.root: no such folder: /nowhere",
            id="config error",
        ),
        pytest.param(
            ["algorithm.lr=1e30"], "FAILED", "error: round 1 diverged", id="failed run", marks=pytest.mark.slow
        ),
    ],
)
def test_the_rendered_entrypoint_stops_on_a_config_error_and_fails_with_the_run(
    cluster: Head, config: Path, tmp_path: Path, settings: list[str], status: str, message: str
) -> None:
    """KubeRay retries a RayJob whose Ray job is FAILED. One whose Ray job is STOPPED is complete."""
    entrypoint = objects("no-gpu")["RayJob/raybcgd-first"]["spec"]["entrypoint"]
    for shipped, here in (("/etc/raybcgd/config.toml", str(config)), ("/shared/runs/first", str(tmp_path / "out"))):
        assert shipped in entrypoint
        entrypoint = entrypoint.replace(shipped, here)
    config.write_text(config.read_text().replace("count = 1\n", ""))  # the entrypoint sets hosts.max_count
    more = " ".join(f"--set {setting}" for setting in settings)
    job = ask(cluster, "", entrypoint=f"cd {ROOT} && exec {entrypoint} {more}")["submission_id"]
    until(lambda: ask(cluster, job)["status"] in ("STOPPED", "FAILED", "SUCCEEDED"), 90)
    log = ask(cluster, f"{job}/logs")["logs"]
    assert message in log
    assert ask(cluster, job)["status"] == status, log


def test_a_misspelled_setting_is_refused_before_anything_is_sent(cluster: Head, config: Path) -> None:
    before = len(jobs(cluster))
    words = ["submit", str(config), "--address", cluster.dashboard, "--set", "algorithm.lrr=1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert len(jobs(cluster)) == before
    assert "error: algorithm.lrr is not a setting of fedbcgd+; did you mean lr?" in done.stderr
    assert "job:" not in done.stdout


def test_requests_without_the_token_are_refused(cluster: Head, config: Path) -> None:
    submit = ("submit", str(config), "--address", cluster.dashboard)
    for env in ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""}, {"RAY_AUTH_TOKEN": "b" * 32}):
        done = cluster.raybcgd(*submit, **env)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "job:" not in done.stdout
        assert done.stderr.startswith("error: the cluster at"), done.stderr
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{cluster.dashboard}/api/jobs/", timeout=30)


@pytest.mark.slow
def test_the_jobs_folder_works_with_ray_job_submit(cluster: Head, tmp_path: Path) -> None:
    """Submit the scripts as in the README, with the repository as working directory. A misspelled setting fails."""
    for name, text in (("good.toml", small(engine="ray").to_toml()), ("bad.toml", "rouns = 3\n")):
        (tmp_path / name).write_text(text)
    before = set(cluster.runs())
    command = [str(BIN / "ray"), "job", "submit", "--address", cluster.dashboard, "--working-dir", str(ROOT), "--"]
    for name, code in (("good.toml", 0), ("bad.toml", 1)):
        done = subprocess.run(
            [*command, "python", "jobs/train.py", str(tmp_path / name)],
            env=cluster.env,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert ("error: rouns is not a setting; did you mean rounds?" in done.stdout) == bool(code)
    (new,) = set(cluster.runs()) - before
    assert (new / "summary.json").exists()
    assert [job["driver_exit_code"] for job in jobs(cluster) if "bad.toml" in job["entrypoint"]] == [2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "file"),
    [
        ("compare.py", ["--algorithms", "fedavg,fedbcgd"], "comparison.json"),
        ("sweep.py", ["--grid", "algorithm.lr=0.03,0.1"], "best.toml"),
    ],
)
def test_comparisons_and_sweeps_run_as_jobs(
    cluster: Head, config: Path, script: str, arguments: list[str], file: str
) -> None:
    before = set(cluster.runs())
    command = [str(BIN / "ray"), "job", "submit", "--address", cluster.dashboard, "--working-dir", str(ROOT), "--"]
    command += ["python", f"jobs/{script}", str(config), *arguments]
    done = subprocess.run(command, env=cluster.env, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (new,) = set(cluster.runs()) - before
    assert (new / file).exists()
    assert str(new) in done.stdout  # the job prints its folder
