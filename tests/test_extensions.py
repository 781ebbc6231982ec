"""The six extension points: from a config and from Python, on both engines, after a resume, and with errors."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from typer.testing import CliRunner

from raybcgd import Codec, ConfigError, Dataset, Partitioner, run
from raybcgd.cli import app
from raybcgd.config import load_config
from raybcgd.data.settings import DataConfig
from raybcgd.data.sources import digits, load
from tests.conftest import ONE_BY_ONE, small

MODULE = '''
from dataclasses import replace

import numpy as np
import torch
from torch import nn

import widths  # a module in the same folder
from raybcgd import Codec, Partitioner
from raybcgd.algorithms import FedAvg
from raybcgd.data.sources import digits


class Warm(FedAvg):
    """Warm (nobody, never): FedAvg with a smaller step size in round 0."""

    name = "warm"
    start: float = 0.5
    """Factor of the step size in round 0."""

    def lr_at(self, round_index):
        return super().lr_at(round_index) * (self.start if round_index == 0 else 1)


def network(input_shape, classes, hidden=widths.HIDDEN):
    size = input_shape[0] * input_shape[1] * input_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, classes))


def smooth(outputs, targets, reduction="mean"):
    return nn.functional.cross_entropy(outputs, targets, reduction=reduction, label_smoothing=0.1)


def low_digits(config):
    data = digits(config)
    below = config.options["below"]
    train, test = (split.take(np.flatnonzero(split.targets < below)) for split in (data.train, data.test))
    return replace(data, name="low digits", train=train, test=test, classes=below)


class Runs(Partitioner):
    """Runs of consecutive samples."""

    skip: int = 0
    """Samples at the start that no client gets."""

    def owners(self, targets, classes, rng):
        place = np.arange(len(targets)) - self.skip
        return np.where(place < 0, -1, place * self.clients // (len(targets) - self.skip))


class Half(Codec):
    """16-bit floats."""

    def encode(self, values, rng):
        return values.half().numpy().view(np.uint8)

    def decode(self, payload, length, dtype):
        return torch.from_numpy(payload.view(np.float16).copy()).to(dtype)

    def size(self, length, dtype):
        return 2 * length
'''
CONFIG: dict[str, Any] = {
    "rounds": 2,
    "data": {
        "source": "mine:low_digits",
        "options": {"below": 4},
        "partition": {"kind": "mine:Runs", "clients": 8, "skip": 5},
    },
    "model": {"name": "mine:network", "loss": "mine:smooth"},
    "blocks": {"count": 1},
    "algorithm": {"name": "mine:Warm", "lr": 0.1},
    "cohort": {"clients_per_round": 4},
    "local": {"epochs": 1, **ONE_BY_ONE},
    "wire": {"codec": "mine:Half"},
    "hosts": {"count": 1},
    "checkpoint": {"every": 1},
    "metrics": {"enabled": False},
}
SCRIPT = """
import sys

{imports}
from raybcgd import Config, run

if __name__ == "__main__":
    tables = {tables}
    tables["data"] = {{
        "source": mine.low_digits,
        "options": {{"below": 4}},
        "partition": mine.Runs(clients=8, skip=5),
    }}
    tables["model"] = {{"name": mine.network, "loss": mine.smooth}}
    tables |= {{"algorithm": mine.Warm(lr=0.1), "wire": mine.Half(), "engine": sys.argv[1]}}
    run(Config(**tables), out="run")
"""
ENGINES = pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.ray)])
ENGINES_RAY_SLOW = pytest.mark.parametrize(
    "engine", ["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])]
)


def write_modules(folder: Path) -> Path:
    (folder / "mine.py").write_text(MODULE)
    (folder / "widths.py").write_text("HIDDEN = 7\n")
    (folder / "config.toml").write_text(tomli_w.dumps(CONFIG))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_modules(tmp_path)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The SHA-256 of an uninterrupted local run of the config."""
    folder = write_modules(tmp_path_factory.mktemp("expected"))
    command(folder, "train", "config.toml", "--out", "run", "--set", "engine=local")
    return str(summary(folder / "run")["sha256"])


def command(folder: Path, *words: str) -> None:
    """Run the installed script. Unlike with `python -c`, the current folder is not on its path at the start."""
    start([str(Path(sys.executable).with_name("raybcgd")), *words], folder)


def start(words: list[str], folder: Path) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def summary(run_folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_folder / "summary.json").read_text())
    return found


@ENGINES
def test_a_config_names_all_six_and_the_run_can_be_resumed(folder: Path, engine: str, expected: str) -> None:
    command(folder, "train", "config.toml", "--out", "run", "--set", f"engine={engine}", "--set", "rounds=1")
    done = summary(folder / "run")
    assert done["algorithm"] == "warm"
    assert done["parameters"] == (64 + 1) * 7 + (7 + 1) * 4
    assert done["upload_bytes"] == 2 * done["upload_floats"] == 2 * 4 * done["parameters"]
    assert json.loads((folder / "run" / "rounds.jsonl").read_text())["lr"] == 0.05
    partition = json.loads((folder / "run" / "partition.json").read_text())
    assert partition["dataset"] == "low digits"
    command(folder, "resume", "run", "--set", "rounds=2", "--set", "engine=local", "--trust")
    assert summary(folder / "run")["sha256"] == expected


@ENGINES_RAY_SLOW
def test_python_objects_give_the_same_run_and_the_command_line_can_resume_it(
    folder: Path, engine: str, expected: str
) -> None:
    tables = {key: value for key, value in CONFIG.items() if key not in ("data", "model", "algorithm", "wire")}
    (folder / "script.py").write_text(SCRIPT.format(imports="import mine", tables={**tables, "rounds": 1}))
    start([sys.executable, "script.py", engine], folder)
    command(folder, "resume", "run", "--set", "rounds=2", "--set", "engine=local", "--trust")
    assert summary(folder / "run")["sha256"] == expected


@ENGINES
def test_objects_defined_in_a_notebook_need_no_module(folder: Path, engine: str) -> None:
    """Classes and functions in `__main__` cannot be imported on other machines, so Ray sends their code."""
    tables = {key: value for key, value in CONFIG.items() if key not in ("data", "model", "algorithm", "wire", "local")}
    code = MODULE.replace("import widths", "class widths:\n    HIDDEN = 7\n")
    script = SCRIPT.format(imports=f"{code}\nmine = sys.modules[__name__]", tables=tables)
    (folder / "script.py").write_text(script)
    (folder / "mine.py").unlink()
    start([sys.executable, "script.py", engine], folder)
    assert summary(folder / "run")["algorithm"] == "warm"
    assert "__main__:Runs" in (folder / "run" / "config.toml").read_text()


# Errors


def train(folder: Path, *settings: str) -> str:
    """Expect `raybcgd train` to fail, and return its one-line error."""
    (folder / "base.toml").write_text(small(rounds=1, algorithm={"name": "fedavg"}).to_toml())
    words = ["train", str(folder / "base.toml"), "--out", str(folder / "run")]
    done = CliRunner().invoke(app, [*words, *(word for text in settings for word in ("--set", text))])
    assert done.exit_code in (1, 2), done.output
    assert "Traceback" not in done.output
    (line,) = done.stderr.splitlines()
    return line


BASES = {"algorithm.name": "Algorithm", "wire.codec": "Codec", "data.partition.kind": "Partitioner"}
SETTINGS = (*BASES, "model.name", "model.loss", "data.source")


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_unknown_name_gives_the_list_of_known_names(setting: str, tmp_path: Path) -> None:
    assert f'{setting} = "zzz" is unknown; use one of ' in train(tmp_path, f"{setting}=zzz")


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("reference", ["no_such_module:X", "raybcgd.errors:NoSuchName"])
def test_a_reference_that_cannot_be_imported_is_named(setting: str, reference: str, tmp_path: Path) -> None:
    assert f'{setting} = "{reference}" cannot be imported (' in train(tmp_path, f"{setting}={reference}")


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_reference_to_an_object_of_another_type_is_refused(setting: str, tmp_path: Path) -> None:
    wrong = f"is not a subclass of {BASES[setting]}" if setting in BASES else "is not callable"
    assert f'{setting} = "raybcgd.storage:FORMAT_VERSION" {wrong}' in train(
        tmp_path, f"{setting}=raybcgd.storage:FORMAT_VERSION"
    )


class Wrong(Partitioner):
    """Applies `result` to valid owners."""

    result: Any = None

    def owners(self, targets: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
        return self.result(np.arange(len(targets)) % self.clients)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda owners: owners[1:], r"returned int64 of shape \(1441,\); return one integer per training sample"),
        (lambda owners: owners / 2, "returned float64 of shape"),
        (lambda owners: owners + 1, "returned clients from 1 to 20; return 0 to 19, or -1 for none"),
        (lambda owners: np.where(owners == 3, 4, owners), "left client 3 without samples"),
        (lambda owners: owners[9999], "failed .IndexError: index 9999 is out of bounds"),
    ],
)
def test_a_partition_with_wrong_owners_is_refused(result: Callable[..., Any], message: str, out: Path) -> None:
    config = small(data={"partition": Wrong(clients=20, result=result)})
    with pytest.raises(ConfigError, match=rf'^data\.partition\.kind = "{__name__}:Wrong" {message}'):
        run(config, out=out)


def nothing(config: DataConfig) -> None:
    return None


def broken(config: DataConfig) -> Dataset:
    raise KeyError(config.options["name"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (nothing, "returned NoneType; return a raybcgd.Dataset"),
        (broken, r"failed \(KeyError: 'x'\); fix it, or its settings"),
    ],
)
def test_a_source_that_fails_or_returns_no_data_set_is_refused(source: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf'^data\.source = "{__name__}:{source.__name__}" {message}'):
        load(DataConfig(source=source, options={"name": "x"}))


class Short(Codec):
    """Drops a byte."""

    def encode(self, values: torch.Tensor, rng: np.random.Generator) -> np.ndarray:
        return values.numpy().view(np.uint8)[1:]

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(length, dtype=dtype)

    def size(self, length: int, dtype: torch.dtype) -> int:
        return length * dtype.itemsize


class TooFew(Codec):
    """Decodes one value too few."""

    def encode(self, values: torch.Tensor, rng: np.random.Generator) -> np.ndarray:
        return values.numpy().view(np.uint8)

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(length - 1, dtype=dtype)

    def size(self, length: int, dtype: torch.dtype) -> int:
        return length * dtype.itemsize


class TooWide(TooFew):
    """Decodes to another type."""

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(length, dtype=torch.float64)


@pytest.mark.parametrize("method", ["fedavg", "fedbcgd+"])
def test_a_codec_that_decodes_something_else_than_declared_stops_the_run(method: str, tmp_path: Path) -> None:
    for name, found in (("TooFew", "float32"), ("TooWide", "float64")):
        (tmp_path / name).mkdir()
        line = train(tmp_path / name, f"wire.codec={__name__}:{name}", f"algorithm.name={method}")
        shape = r"Tensor of shape \(\d+,\) and torch"
        said = rf'wire.codec = "{__name__}:{name}": `decode` returned a {shape}.{found}; return a {shape}.float32'
        assert re.search(said, line), line


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_codec_whose_uploads_differ_from_its_declared_size_stops_the_run(method: str, tmp_path: Path) -> None:
    line = train(tmp_path, f"wire.codec={__name__}:Short", f"algorithm.name={method}")
    assert f'wire.codec = "{__name__}:Short": an upload has 7015 bytes instead of 7016' in line
    assert "make `encode` and `size` agree" in line


def test_a_lambda_runs_but_cannot_be_imported_from_the_written_config(out: Path) -> None:
    config = small(rounds=1, data={"source": lambda config: replace(digits(config), name="mine")})
    run(config, out=out)
    with pytest.raises(ConfigError, match=r'data\.source = ".*<lambda>" cannot be imported'):
        load(load_config(out / "config.toml").data)
