"""Reports of runs that failed, of points that diverged, and of runs without a complete round."""

import json
import re
import shutil
from pathlib import Path

import pytest

from raybcgd.record.lock import locked
from raybcgd.report.watch import LivePage
from tests.report.conftest import report

DIVERGED = "round 2 diverged: client 9 uploaded non-finite values; lower algorithm.lr"


@pytest.fixture
def sweep(folder: Path, tmp_path: Path) -> Path:
    """A sweep of three points, the last of which diverged after its first round."""
    points = []
    for number, lr in enumerate((0.05, 0.1, 100)):
        one = shutil.copytree(folder / "fedavg", tmp_path / "sweep" / f"{number:03d}")
        config = one / "config.toml"
        config.write_text(re.sub(r"^lr = .*$", f"lr = {float(lr)}", config.read_text(), flags=re.MULTILINE))
        points.append({"algorithm.lr": lr, "error": None, "folder": one.name})
    points[-1]["error"] = DIVERGED
    (one / "summary.json").unlink()
    first, *_ = (one / "rounds.jsonl").read_text().splitlines(keepends=True)
    (one / "rounds.jsonl").write_text(first)
    (tmp_path / "sweep/sweep.json").write_text(json.dumps({"metric": "best_accuracy", "points": points}))
    return tmp_path / "sweep"


def errors(page: str) -> str:
    return page.split('<section id="errors">')[1]


def test_a_diverged_point_of_a_sweep_is_a_failure(sweep: Path) -> None:
    assert report(sweep).exit_code == 0
    page = (sweep / "report.html").read_text()
    assert "<h1>Sweep of 3 points with FedAvg; 1 failed</h1>" in page
    assert "<td>lr 100.0</td><td>failed</td><td>-</td>" in page
    assert f"<td>lr 100.0</td><td>{DIVERGED}</td>" in errors(page)
    assert "<th>final accuracy</th>" in page
    assert "Stopped before the end" not in page


def test_a_point_that_diverged_in_its_first_round_is_listed_too(sweep: Path) -> None:
    (sweep / "002/rounds.jsonl").write_text("")
    assert report(sweep).exit_code == 0
    page = (sweep / "report.html").read_text()
    assert "<td>lr 100.0</td><td>failed</td><td>-</td>" in page
    assert f"<td>lr 100.0</td><td>{DIVERGED}</td>" in errors(page)
    assert "first round was complete" not in page


def test_a_failed_point_alone_has_one_row_and_its_reason(sweep: Path) -> None:
    assert report(sweep / "002").exit_code == 0
    page = (sweep / "002/report.html").read_text()
    assert page.count("<td>FedAvg</td><td>1 of 6</td>") == 1
    assert f"<td>FedAvg</td><td>{DIVERGED}</td>" in errors(page)
    assert "seeds failed" not in page


def test_a_point_that_runs_again_is_in_progress(sweep: Path) -> None:
    with locked(str(sweep / "002")):
        page = LivePage([sweep]).html().decode()
    assert "In progress: lr 100.0, round 1 of 6" in page
    assert DIVERGED not in page


def test_a_damaged_sweep_record_is_named(sweep: Path) -> None:
    (sweep / "sweep.json").write_text("{}")
    result = report(sweep)
    assert result.exit_code == 2
    assert "sweep.json is not a sweep record; restore it, or delete it" in result.output


@pytest.fixture
def bare(folder: Path, tmp_path: Path) -> Path:
    """A run that ended before its first round was complete."""
    (tmp_path / "bare").mkdir()
    shutil.copy(folder / "fedavg/config.toml", tmp_path / "bare")
    return tmp_path / "bare"


def test_only_a_running_driver_is_worth_the_wait(bare: Path) -> None:
    result = report(bare)
    assert result.exit_code == 2
    assert f"{bare} stopped before its first round was complete; leave it out, or start it again" in result.output
    with locked(str(bare)):
        assert f"{bare} has no rounds yet; wait for the first one" in report(bare).output


def test_a_run_without_rounds_does_not_block_the_others(
    bare: Path, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    page = tmp_path / "page.html"
    assert report(folder / "fedavg", bare, "--out", page).exit_code == 0
    assert caplog.messages == [f"{bare} is left out: it stopped before its first round was complete"]
    assert f"<td>{bare}</td><td>failed</td>" in page.read_text()
    assert f"<td>{bare}</td><td>stopped before its first round was complete; start it again</td>" in page.read_text()
    with locked(str(bare)):
        assert report(bare, folder / "fedavg", "--out", page).exit_code == 0
    assert str(bare) not in page.read_text()
    assert caplog.messages[1:] == [f"{bare} is left out: it has no rounds yet"]
