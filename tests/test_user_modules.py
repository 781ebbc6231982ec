"""Models and methods of one's own, by "package.module:callable", from a module in the current folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from tests.conftest import small

MODULE = '''
from torch import nn

import widths  # a module next to it
from raybcgd.algorithms import FedAvg


def network(input_shape, classes, hidden=widths.HIDDEN):
    size = input_shape[0] * input_shape[1] * input_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, classes))


class Half(FedAvg):
    """Half (nobody, never): FedAvg at half the rate."""

    name = "half"

    def lr_at(self, round_index):
        return super().lr_at(round_index) / 2
'''


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_the_command_line_finds_modules_in_the_current_folder(tmp_path: Path, engine: str) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "widths.py").write_text("HIDDEN = 7\n")
    config = small(engine=engine, rounds=1, blocks={"count": 1}, hosts={"count": 1}).model_dump(
        mode="json", exclude_none=True
    )
    config["model"] = {"name": "mine:network"}
    config["algorithm"] = {"name": "mine:Half", "lr": 0.1}
    (tmp_path / "config.toml").write_text(tomli_w.dumps(config))
    # The installed script: unlike `python -c`, it does not start with the current folder on its path.
    script = Path(sys.executable).with_name("raybcgd")
    result = subprocess.run(
        [script, "train", "config.toml", "--out", "run"], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["parameters"] == (64 + 1) * 7 + (7 + 1) * 10
    assert summary["algorithm"] == "half"
    assert json.loads((tmp_path / "run" / "rounds.jsonl").read_text())["lr"] == 0.05
