"""Structured log records, as a program sees them and as `--log json` writes them."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from raybcgd.record.logs import JsonFormatter, log_as_json, log_round
from raybcgd.record.rounds import Dropped, RoundLog
from raybcgd.running import run
from tests.conftest import small


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream, ours = io.StringIO(), logging.getLogger("raybcgd")
    handler = log_as_json(stream)
    yield stream
    ours.removeHandler(handler)
    ours.setLevel(logging.NOTSET)
    ours.propagate = True


def _parsed(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_every_round_is_a_record_with_its_run_and_number(lines: io.StringIO, tmp_path: Path) -> None:
    result = run(small(rounds=3), out=tmp_path / "run")
    logged = [line for line in _parsed(lines) if line["logger"] == "raybcgd.rounds"]
    assert [line["round"] for line in logged] == [0, 1, 2]
    assert {line["run"] for line in logged} == {f"{tmp_path.name}/run"}
    assert [line["accuracy"] for line in logged] == [record.accuracy for record in result.records]


def test_what_goes_wrong_is_a_warning_with_its_client(lines: io.StringIO, tmp_path: Path) -> None:
    (record,) = run(small(rounds=1), out=tmp_path / "run").records
    lines.truncate(0)
    lines.seek(0)
    lost = (Dropped(client=7, block=1, reason="deadline"), Dropped(client=9, block=0, reason="ValueError: x"))
    log_round(record.model_copy(update={"dropped": lost, "restarted": 1, "retried": 3}), "mine")
    dropped = [line for line in _parsed(lines) if "client" in line]
    assert [(line["client"], line["round"], line["run"], line["level"]) for line in dropped] == [
        (7, 0, "mine", "warning"),
        (9, 0, "mine", "warning"),
    ]
    assert "ValueError: x" in dropped[1]["message"]
    (hosts,) = [line for line in _parsed(lines) if "restarted" in line]
    assert hosts["message"] == "1 hosts were lost; 3 jobs were done again"


def test_errors_keep_their_traceback() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.getLogger("x").makeRecord("x", logging.ERROR, "", 1, "it %s", ("broke",), sys.exc_info())
    line = json.loads(JsonFormatter().format(record))
    assert line["message"] == "it broke"
    assert "ValueError: no" in line["error"]


def test_the_command_line_writes_json_lines_and_the_table(tmp_path: Path) -> None:
    config = tmp_path / "small.toml"
    config.write_text(tomli_w.dumps(small(rounds=2).model_dump(mode="json", exclude_none=True)))
    done = subprocess.run(
        [sys.executable, "-m", "raybcgd", "train", config, "--out", tmp_path / "run", "--log", "json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["round"] for line in done.stderr.splitlines()] == [0, 1]
    assert "round 1/2" not in done.stdout
    assert "d in all" in done.stdout
    assert len(list(RoundLog(tmp_path / "run/rounds.jsonl"))) == 2
