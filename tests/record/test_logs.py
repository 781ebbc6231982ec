"""Structured log records, in a program and from `--log json`."""

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

from raybcgd.experiment import run
from raybcgd.record.logs import JsonFormatter, log_as_json, log_round
from raybcgd.record.rounds import Dropped, RoundLog
from tests.conftest import ONE_BY_ONE, small


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


def test_every_round_is_logged_with_its_run_and_number(lines: io.StringIO, tmp_path: Path) -> None:
    result = run(small(rounds=3), out=tmp_path / "run")
    logged = [line for line in _parsed(lines) if line["logger"] == "raybcgd.rounds"]
    assert [line["round"] for line in logged] == [0, 1, 2]
    assert [line["message"] for line in logged] == [f"round {number} finished" for number in (1, 2, 3)]
    assert {line["run"] for line in logged} == {f"{tmp_path.name}/run"}
    assert [line["accuracy"] for line in logged] == [record.quality.accuracy for record in result.records]


def test_dropped_clients_and_lost_hosts_are_warnings(lines: io.StringIO, tmp_path: Path) -> None:
    (record,) = run(small(rounds=1), out=tmp_path / "run").records
    lines.truncate(0)
    lines.seek(0)
    lost = (Dropped(client=7, block=1, reason="deadline"), Dropped(client=9, block=0, reason="ValueError: x"))
    hosts = record.hosts.model_copy(update={"restarted": 1, "retried_tasks": 3})
    log_round(record.model_copy(update={"dropped": lost, "hosts": hosts}), "mine")
    dropped = [line for line in _parsed(lines) if "client" in line]
    assert [(line["client"], line["round"], line["run"], line["level"]) for line in dropped] == [
        (7, 0, "mine", "warning"),
        (9, 0, "mine", "warning"),
    ]
    assert "ValueError: x" in dropped[1]["message"]
    (line,) = [line for line in _parsed(lines) if "restarted" in line]
    assert (line["message"], line["level"]) == ("hosts restarted: 1; tasks retried: 3", "warning")


def test_errors_keep_their_traceback() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.getLogger("x").makeRecord("x", logging.ERROR, "", 1, "it %s", ("broke",), sys.exc_info())
    line = json.loads(JsonFormatter().format(record))
    assert line["message"] == "it broke"
    assert "ValueError: no" in line["error"]


def test_the_command_line_writes_json_lines_and_a_table(tmp_path: Path) -> None:
    config = tmp_path / "small.toml"
    config.write_text(tomli_w.dumps(small(rounds=2, local=ONE_BY_ONE).model_dump(mode="json", exclude_none=True)))
    done = subprocess.run(
        [sys.executable, "-m", "raybcgd", "train", config, "--out", tmp_path / "run", "--log", "json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, *rounds = [json.loads(line) for line in done.stderr.splitlines()]
    assert first["message"] == "training the first rounds"
    assert [line["round"] for line in rounds] == [0, 1]
    assert "round 1/2" not in done.stdout
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["sha256"][:16] in done.stdout
    assert len(list(RoundLog(tmp_path / "run/rounds.jsonl"))) == 2
