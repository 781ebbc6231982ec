"""The report of the benchmarks. The benchmarks themselves take too long for a test."""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report

PUBLISHED: dict[str, Any] = json.loads(report.DATA.read_text())
CURVE = {"title": "Curve", "x": "clients", "points": [{"x": x, "seconds": [0.1 * x, 0.2 * x]} for x in (1, 10)]}


@pytest.mark.parametrize(
    ("parts", "titles", "image"),
    [
        (("rounds",), ["W2"], "![Round times](results.png)"),
        (("scaling",), ["clients"], "![Scaling curves](results.png)"),
        (("rounds", "scaling"), ["W2", "clients"], "![Round times and scaling curves](results.png)"),
        ((), [], ""),
    ],
)
def test_only_measured_parts_are_drawn(parts: tuple[str, ...], titles: list[str], image: str) -> None:
    every = {"rounds": {"W2": PUBLISHED["rounds"]["W2"]}, "scaling": {"clients": CURVE}}
    results = {"meta": PUBLISHED["meta"], **{part: every[part] for part in parts}}
    figure = report.plot(results)
    assert [axes.get_title() for axes in (figure.get_axes() if figure else [])] == titles
    page = report.page(results)
    assert image in page
    assert ("results.png" in page) == bool(parts)


def test_a_quick_run_keeps_the_published_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("RAY_AUTH_MODE", "disabled"), ("RAY_worker_niceness", "0")):
        monkeypatch.setenv(name, value)  # otherwise, the import would set it for the tests that follow
    from benchmarks import __main__ as benchmarks

    published, temporary = tmp_path / "published", tmp_path / "temporary"
    published.mkdir()
    temporary.mkdir()
    for name in ("DATA", "PAGE", "PLOT"):
        monkeypatch.setattr(report, name, Path(shutil.copy(getattr(report, name), published)))
    before = {path: path.read_bytes() for path in published.iterdir()}
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(benchmarks.ray, "init", lambda **_: None)
    monkeypatch.setattr(benchmarks.overheads, "measure", lambda quick: {"one step": 1.0})
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--no-peers", "--only", "overheads"])
    benchmarks.main()
    assert {path: path.read_bytes() for path in published.iterdir()} == before
    (folder,) = temporary.iterdir()
    assert f"results: {folder / 'RESULTS.md'}" in capsys.readouterr().out
    assert "A quick run" in (folder / "RESULTS.md").read_text()
