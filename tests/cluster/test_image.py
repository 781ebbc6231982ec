"""The steps of the Dockerfile, run as an ordinary user. Docker itself is not needed."""

import json
import re
import shlex
from pathlib import Path

from raybcgd.cluster.versions import KUBERAY_VERSION, RAY_VERSION, ray_image
from raybcgd.version import VERSION
from tests.cluster.shipped import CLUSTER, ROOT, cluster_spec
from tests.cluster.steps import Home, copy

DOCKERFILE = (CLUSTER / "Dockerfile").read_text()


def steps() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile."""
    lines = re.sub(r"\\\n\s*", "", DOCKERFILE).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line and line[0] != "#")]


def test_the_steps_install_the_package_as_an_ordinary_user(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for word, rest in steps():
        line = rest.replace("/home/ray", str(home.path))
        if word == "COPY":
            *names, target = line.removeprefix("--chown=ray ").split()
            folder = Path(target)
            for name in names:
                copy(ROOT / name, folder / name if target.endswith("/") else folder)
        elif word == "RUN":
            done = home.run(line)
            assert done.returncode == 0, done.stdout + done.stderr
    home.check_installation()
    done = home.run("python -m raybcgd --version", cwd=home.path / "raybcgd")  # the image's working directory
    assert done.stdout.strip() == f"raybcgd {VERSION}"


def test_the_sidecar_starts_in_the_image(tmp_path: Path) -> None:
    head = cluster_spec("aws-spot")["headGroupSpec"]["template"]["spec"]
    (sidecar,) = [container for container in head["containers"] if container["name"] == "metrics"]
    done = Home(tmp_path).run(f"{shlex.join(sidecar['command'])} --help", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "--port" in done.stdout


def test_versions_match_the_constraints_and_the_package() -> None:
    (ray,) = re.findall(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert ray == RAY_VERSION == cluster_spec("no-gpu")["rayVersion"]
    files = [
        path for path in CLUSTER.rglob("*") if path.suffix in (".md", ".toml", ".yaml") or path.name == "Dockerfile"
    ]
    assert len(files) > 40
    for path in files:
        text = path.read_text()
        assert set(re.findall(r"rayproject/ray:[\w.-]+", text)) <= {ray_image(True), ray_image(False)}, path
        assert set(re.findall(r"REGISTRY/raybcgd:([\w.]+)", text)) <= {VERSION}, path
        assert set(re.findall(r"kuberay-operator --version (\S+)", text)) <= {KUBERAY_VERSION}, path
    assert f"--version {KUBERAY_VERSION}" in (CLUSTER / "README.md").read_text()


def test_the_image_contains_what_it_copies_and_no_secrets() -> None:
    for path in CLUSTER.rglob("*"):
        if path.is_file():
            assert not re.search(
                r"AKIA[0-9A-Z]{16}|BEGIN [A-Z ]*PRIVATE KEY|RAY_AUTH_TOKEN[:=] *[\"']?\w{16}", path.read_text()
            ), path
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored  # exclude everything that is not listed
    copied = [rest.removeprefix("--chown=ray ").split()[:-1] for word, rest in steps() if word == "COPY"]
    assert {f"!{name}" for names in copied for name in names} == {line for line in ignored if line.startswith("!")}
    assert json.dumps("token") in json.dumps(cluster_spec("aws-spot")["authOptions"])
