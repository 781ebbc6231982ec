"""CONTRIBUTING.md: every change works exactly as written. Names and links in the other documents exist."""

import importlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tomli_w
import torch
from sklearn.datasets import load_digits

from raybcgd import Config, run
from raybcgd.config import make_config
from raybcgd.data.settings import DataConfig
from raybcgd.data.sources import digits
from raybcgd.problem import prepare

ROOT = Path(__file__).parent.parent
METHOD, CODEC, PARTITION, SOURCE = "A method with client state", "A codec", "A partition", "A data source"
MODEL, PYTHON, METRIC = "A model and a loss", "All of them from Python", "A metric and its panel"
PLUGINS = (METHOD, CODEC, PARTITION, SOURCE, MODEL)
BASE: dict[str, Any] = {
    "rounds": 2,
    "engine": "local",
    "data": {"partition": {"clients": 10}},
    "blocks": {"count": 1},
    "algorithm": {"name": "fedavg", "lr": 0.05},
    "local": {"epochs": 1, "batch_size": 20},
    "cohort": {"clients_per_round": 10},
}


@cache
def blocks(title: str) -> dict[str, str]:
    """Return the code blocks of a section, by language."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (section,) = re.findall(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    found = re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert len({language for language, _ in found}) == len(found), f"{title}: two blocks in the same language"
    return dict(found)


def merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {key: merged(under[key], over[key]) for key in under.keys() & over.keys() if isinstance(under[key], dict)}
    return {**under, **over, **both}


def config_of(title: str) -> Config:
    """Return the section's config, on top of FedAvg on the digits."""
    return make_config(merged(BASE, tomllib.loads(blocks(title)["toml"])))


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all examples in mine.py, and the digits as a CSV file."""
    folder = tmp_path_factory.mktemp("workshop")
    (folder / "mine.py").write_text("\n\n".join(blocks(title)["python"] for title in PLUGINS))
    bunch = load_digits()
    np.savetxt(folder / "digits.csv", np.column_stack([bunch.data / 16, bunch.target]), fmt="%g", delimiter=";")
    return folder


@pytest.fixture
def mine(workshop: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The examples as an importable module in the current folder, as in CONTRIBUTING."""
    monkeypatch.chdir(workshop)
    monkeypatch.syspath_prepend(workshop)
    yield importlib.import_module("mine")
    del sys.modules["mine"]


# From your own module


def test_client_state_survives_a_round_and_a_resume(mine: Any, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    rule = mine.FedMemory.client_rule

    def spy(self: Any, work: Any, down: Any, state: Any) -> Any:
        seen.append(state)
        return rule(self, work, down, state)

    monkeypatch.setattr(mine.FedMemory, "client_rule", spy)
    config = config_of(METHOD)
    assert config.algorithm.beta == 0.2  # type: ignore[attr-defined]
    run(config.model_copy(update={"rounds": 1}), out=out)
    run(config, out=out, resume=True)
    first, second = seen  # each a stack of all ten clients
    assert first.m.shape == second.m.shape == (10, first.m.shape[-1])
    assert not first.rounds.any()
    assert not first.m.any()
    assert (second.rounds == 1).all()
    assert second.m.any(dim=-1).all()


def test_a_codec_sends_the_bytes_that_it_declares(mine: Any, out: Path) -> None:
    result = run(config_of(CODEC), out=out)
    size = result.summary["parameters"]
    for record in result.records:
        assert record.traffic.upload_bytes == 10 * (4 + math.ceil(size / 8))
        assert record.traffic.compression_ratio == pytest.approx(32, rel=0.02)
    assert result.records[1].quality.train_loss < result.records[0].quality.train_loss  # type: ignore[operator]


def test_a_partition_gets_its_settings_and_decides_the_sizes(mine: Any, out: Path) -> None:
    config = config_of(PARTITION)
    _, data = prepare(config)
    sizes = data.partitions[0].sizes
    assert sizes.sum() == len(data.dataset.train)
    assert sizes[0] / sizes[3] == pytest.approx(4**1.5, rel=0.05)
    assert len(run(config, out=out).records[-1].participants) == 10


def test_a_data_source_reads_its_file_and_options(mine: Any, out: Path) -> None:
    config = config_of(SOURCE)
    _, data = prepare(config)
    expected = digits(DataConfig())
    assert data.dataset.name == "csv"
    assert np.array_equal(data.dataset.test.targets, expected.test.targets)
    assert np.array_equal(16 * data.dataset.train.inputs, expected.train.inputs.reshape(-1, 64))
    assert run(config, out=out).records[-1].quality.accuracy is not None


def test_a_model_gets_its_options_and_is_trained_with_the_loss(mine: Any, out: Path) -> None:
    result = run(config_of(MODEL), out=out)
    assert result.summary["parameters"] == (64 + 1) * 24 + (24 + 1) * 10
    dataset = digits(DataConfig())
    inputs = (torch.from_numpy(dataset.test.inputs) / dataset.scale - dataset.mean[0]) / dataset.std[0]
    with torch.no_grad():
        loss = mine.smoothed(result.model(inputs), torch.from_numpy(dataset.test.targets))
    assert result.records[-1].quality.loss == pytest.approx(float(loss), rel=1e-4)


def test_all_of_them_as_python_objects(mine: Any, workshop: Path) -> None:
    scope: dict[str, Any] = {"__name__": "contributing"}
    exec(compile(blocks(PYTHON)["python"], "CONTRIBUTING.md", "exec"), scope)
    result = scope["result"]
    assert len(result.records) == 2
    written = (result.folder / "config.toml").read_text()  # contains references, so that the run can be resumed
    for name in ("FedMemory", "Sign", "PowerLaw", "csv_file", "shallow", "smoothed"):
        assert f'"mine:{name}"' in written


# In the project


class Edit(NamedTuple):
    """Lines to insert below other lines of a file."""

    path: str
    before: str
    added: str


def edits(title: str) -> list[Edit]:
    """Return the edits in the section's diff block."""
    found = []
    for part in re.split(r"^--- ", blocks(title)["diff"], flags=re.MULTILINE)[1:]:
        path, *lines = part.splitlines()
        context = [line[1:] for line in lines if line.startswith(" ")]
        added = [line[1:] for line in lines if line.startswith("+")]
        assert lines == [" " + line for line in context] + ["+" + line for line in added]
        found.append(Edit(path, "\n".join(context) + "\n", "\n".join(added) + "\n"))
    return found


def apply(edit: Edit, tree: Path) -> None:
    path = tree / edit.path
    text = path.read_text()
    assert text.count(edit.before) == 1, (
        f"CONTRIBUTING.md edits {edit.path} below lines that must occur exactly once:\n{edit.before}"
    )
    path.write_text(text.replace(edit.before, edit.before + edit.added))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with all six changes."""
    tree = tmp_path_factory.mktemp("project")
    for folder in ("raybcgd", "dashboards", "cluster", "docs", "tests/dashboards"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    for title in (*PLUGINS, METRIC):
        for edit in edits(title):
            apply(edit, tree)
            for _, module, _ in registered(edit):
                (tree / source_file(module)).write_text(blocks(title)["python"])
    return tree


def source_file(module: str) -> str:
    return module.replace(".", "/") + ".py"


def registered(edit: Edit) -> list[tuple[str, str, str]]:
    """Return the built-in names that an edit adds, each with its module and object."""
    package = edit.path.rpartition("/")[0].replace("/", ".")
    lines = edit.added.replace("{_HERE}", package)
    return re.findall(r'"(\S+)": f?"([\w.]+):(\w+)"', lines)


def python(tree: Path, *arguments: str, cwd: Path) -> str:
    """Run Python with the code in `tree`, and return its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_built_in_names_and_the_metric_work_in_the_project(tree: Path, workshop: Path, out: Path) -> None:
    tables = {**BASE, "rounds": 1}
    names = {}
    for title in PLUGINS:
        tables = merged(tables, tomllib.loads(blocks(title)["toml"]))
        names |= {f"mine:{found}": name for edit in edits(title) for name, _, found in registered(edit)}
    text = tomli_w.dumps(tables)
    for reference, name in names.items():
        assert text.count(f'"{reference}"') == 1
        text = text.replace(reference, name)
    out.mkdir()
    (out / "config.toml").write_text(text)
    python(tree, "-m", "raybcgd", "train", str(out / "config.toml"), "--out", str(out / "run"), cwd=workshop)
    written = (out / "run" / "config.toml").read_text()
    assert len(names) == 6
    assert all(f'= "{name}"' in written for name in names.values())
    traffic = json.loads((out / "run" / "rounds.jsonl").read_text())["traffic"]
    assert traffic["largest_upload_bytes"] == traffic["upload_bytes"] // 10 > 0


def test_the_new_metric_gets_its_panel_and_its_row_in_the_table(tree: Path) -> None:
    python(tree, "-m", "dashboards.build", cwd=tree)
    page = json.loads((tree / "dashboards/communication.json").read_text())
    (panel,) = [panel for panel in page["panels"] if panel["title"] == "Largest upload"]
    assert "raybcgd_traffic_largest_upload_bytes{" in panel["targets"][0]["expr"]
    table = (tree / "dashboards/README.md").read_text().splitlines()
    (row,) = [row for row in table if row.startswith("| `raybcgd_traffic_largest_upload_bytes` ")]
    assert row.split(" | ")[1:] == ["gauge", "Largest upload of one client.", "Communication: Largest upload |"]
    python(tree, "-m", "pytest", "-p", "no:cacheprovider", "tests/dashboards/test_generated.py", cwd=tree)


def test_the_changed_files_pass_the_linter(tree: Path) -> None:
    found = [edit for title in (*PLUGINS, METRIC) for edit in edits(title)]
    changed = {edit.path for edit in found} | {source_file(module) for e in found for _, module, _ in registered(e)}
    for command in (("check",), ("format", "--check")):
        python(tree, "-m", "ruff", *command, *sorted(changed), cwd=tree)


# The documents


def test_the_layers_in_the_documents_are_those_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = [re.findall(r"raybcgd\.(\w+)", layer) for layer in contracts[0]["layers"]]
    text = (ROOT / "docs/architecture.md").read_text()
    table = re.search(r"\| layer \| content \|\n\|---\|---\|\n((?:\|.*\n)+)", text)
    assert table is not None
    rows = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table[1].splitlines()]
    assert rows == [layer for layer in checked if layer != ["__main__"]]


def test_every_module_outside_the_ray_engine_is_checked_for_imports_of_ray() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [one for one in contracts if one.get("forbidden_modules") == ["ray"]]
    package = ROOT / "raybcgd"
    found = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    found |= {f"engine.{path.stem}" for path in (package / "engine").glob("[!_]*.py")}
    with_ray = {"__init__", "engine", "submit", "sweep"}
    assert {name.removeprefix("raybcgd.") for name in contract["source_modules"]} == found - with_ray


def test_the_readme_maps_every_package() -> None:
    drawn = (ROOT / "README.md").read_text().split("## Map")[1].split("```")[1]
    packages = {path.parent.name for path in (ROOT / "raybcgd").glob("*/__init__.py")}
    assert packages == set(re.findall(r"^  (\w+)/ ", drawn, re.MULTILINE))
    assert all((ROOT / folder).is_dir() for folder in re.findall(r"^(\w+)/ ", drawn, re.MULTILINE))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "jobs/configs/README.md"])
def test_files_named_in_the_documents_exist(name: str) -> None:
    text, folder = (ROOT / name).read_text(), (ROOT / name).parent
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (folder / link).exists()] == []
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    paths = set(re.findall(r"`([\w.+-]+/[\w./+-]*)`", prose)) - {"runs/", "raybcgd/wire/sign.py"}
    assert [
        path for path in paths if not any((base / path).exists() for base in (ROOT, folder, ROOT / "raybcgd"))
    ] == []
