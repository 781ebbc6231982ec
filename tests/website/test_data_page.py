"""docs/data.md: every file, every command and every line of Python, exactly as written."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raybcgd.cli.app import app

PAGE = Path(__file__).parents[2] / "docs/data.md"


def test_the_page_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for folder in ("table", "text"):
        (tmp_path / folder).mkdir()
    names: dict[str, Any] = {}
    steps = re.findall(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', PAGE.read_text(), re.M | re.S)
    assert {language for language, *_ in steps} == {"python", "toml", "bash"}
    for language, name, content in steps:
        if name:
            (tmp_path / name).write_text(content)
        elif language == "python":
            exec(compile(content, str(PAGE), "exec"), names)
        else:
            for command in content.splitlines():
                done = CliRunner().invoke(app, shlex.split(command)[1:], catch_exceptions=False)
                assert done.exit_code == 0, f"{command}\n{done.output}"
    names_of_clients = json.loads((tmp_path / "runs/table/partition.json").read_text())["names"]
    assert names_of_clients == ["Bonn", "Hof", "Jena", "Kiel", "Ulm"]
    runs = tmp_path / "runs"
    summary = {name: json.loads((runs / name / "summary.json").read_text()) for name in ("text", "regression")}
    assert summary["text"]["final_accuracy"] > 0.6
    assert summary["regression"]["final_accuracy"] is None
    assert summary["regression"]["metrics"]["rmse"] < 0.5
