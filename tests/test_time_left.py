"""The time left of a sweep that continues."""

from pathlib import Path

import pytest

from raybcgd.report.points import Points
from raybcgd.report.progress import Display
from raybcgd.storage import RunFolder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as the only item of a list."""
    now = [0.0]
    monkeypatch.setattr("raybcgd.report.points.monotonic", lambda: now[0])
    return now


def folders(path: Path, rounds: list[int]) -> list[Path]:
    """Make run folders with logs of so many rounds."""
    made = [path / f"{number:03d}" for number in range(len(rounds))]
    for folder, count in zip(made, rounds, strict=True):
        folder.mkdir()
        RunFolder(folder).rounds.write_text("{}\n" * count)
    return made


def test_rounds_that_run_again_count_as_run(tmp_path: Path, clock: list[float]) -> None:
    """Two points had no checkpoint, so they start again at round 1."""
    given = folders(tmp_path, [30, 30])
    points = Points(Display(), given, [40, 40])
    for folder in given:
        RunFolder(folder).rounds.write_text("")
    points.update()
    clock[0] = 20.0
    for folder in given:
        RunFolder(folder).rounds.write_text("{}\n" * 20)
    points.update()
    assert points.left == "20 s left", "40 rounds took 20 s, and 40 are left"


def test_a_point_that_fails_at_once_says_nothing_about_the_time_left(tmp_path: Path, clock: list[float]) -> None:
    points = Points(Display(), folders(tmp_path, [0, 0]), [40, 40])
    clock[0] = 10.0
    points.end(0, "", failed=True)
    assert points.left == "", "no round has run"
