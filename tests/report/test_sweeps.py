"""The table of a sweep, the hint about the edge of its grid, its time left, and the labels of its points."""

import io
import re
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from raybcgd import ConfigError, RunError
from raybcgd.report.page import write_report
from raybcgd.report.points import Points
from raybcgd.report.progress import Display
from raybcgd.report.runs import read_runs
from raybcgd.report.style import shortened
from raybcgd.report.sweeps import Point, edge_hints, points_table, ranked, short_names
from raybcgd.storage import RunFolder
from tests.conftest import small


def point(number: int, accuracy: float | None, upload: float | None = 1.0, **settings: Any) -> Point:
    keys = {f"algorithm.{name}": value for name, value in settings.items()}
    if accuracy is None:
        return Point(number, keys, {}, "round 1 diverged")
    names = ("last_tenth_accuracy", "best_accuracy", "final_accuracy")
    return Point(number, keys, {**dict.fromkeys(names, accuracy), "upload_d_to_target": upload, "target": 0.9})


POINTS = [
    point(0, 0.5, 3.0, lr=0.03, momentum=0.5),
    point(1, None, lr=30.0, momentum=0.5),
    point(2, 0.75, None, lr=0.1, momentum=0.5),
    point(3, 0.625, 2.0, lr=0.3, momentum=0.5),
]


def rows(metric: Any, width: int) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=width)
    console.print(points_table(POINTS, metric, 0.1))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    return [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in lines if "." in line]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_rows_are_ranked_and_the_failed_points_come_last(width: int) -> None:
    table = rows("last_tenth_accuracy", width)[-4:]
    assert [row[:4] for row in table] == [
        ["1", "0.1", "0.5", "75.0%"],
        ["2", "0.3", "0.5", "62.5%"],
        ["3", "0.03", "0.5", "50.0%"],
        ["-", "30.0", "0.5", "failed"],
    ]
    table = rows("upload_d_to_target", width)[-4:]
    assert [(row[0], row[-1]) for row in table] == [("1", "2.0"), ("2", "3.0"), ("-", ""), ("-", "never")]
    assert [found.number for found in ranked(POINTS, "upload_d_to_target")] == [3, 0]


@pytest.mark.parametrize(
    ("metric", "heading", "worst"),
    [
        ("last_tenth_loss", "last tenth loss", "0.375"),
        ("best_loss", "best loss", "0.375"),
        ("final_accuracy", "final", "50"),
    ],
)
def test_the_table_has_the_metric_that_ranks(metric: Any, heading: str, worst: str) -> None:
    points = [point(number, 0.5, 2.0, lr=0.1) for number in range(2)]
    for number, found in enumerate(points):
        found.results.update(last_tenth_loss=0.25 + number / 8, best_loss=0.25 + number / 8)
    table = points_table(points, metric, 0.1)
    cells = {column.header: list(column.cells) for column in table.columns}
    assert list(cells)[:-1] == ["rank", "lr", "last tenth", "best", heading]
    assert cells[heading][1].startswith(worst)  # type: ignore[union-attr]
    assert f"2 runs, ranked by {metric}" in str(table.title)
    assert "1 run, ranked by" in str(points_table(points[:1], metric, 0.1).title)


def test_headings_and_labels_use_the_shortest_names_that_differ() -> None:
    assert short_names(["algorithm.lr", "algorithm.beta"]) == {"algorithm.lr": "lr", "algorithm.beta": "beta"}
    assert short_names(["lr", "algorithm.lr"]) == {"lr": "lr", "algorithm.lr": "algorithm.lr"}
    both = Point(0, {"local.epochs": 1, "data.phases.epochs": 2, "rounds": 3}, {})
    assert both.label == "local.epochs = 1, phases.epochs = 2, rounds = 3"


def grid(source: Path, out: Path, **values: Sequence[float]) -> Path:
    """Copy a run once per combination of the values, as a sweep does."""
    (out / "tune").mkdir(parents=True)
    for number, settings in enumerate(product(*values.values())):
        config = shutil.copytree(source, out / f"{number:03d}") / "config.toml"
        for name, value in zip(values, settings, strict=True):
            config.write_text(re.sub(rf"^{name} = .*$", f"{name} = {value}", config.read_text(), flags=re.MULTILINE))
    return out


def test_the_labels_of_points_have_only_what_differs(folder: Path, tmp_path: Path) -> None:
    sweep = grid(folder / "fedbcgd", tmp_path / "sweep", lr=(0.02, 1.0), momentum=(0.1, 0.5))
    runs = read_runs([sweep])
    assert [run.label for run in runs] == [
        *("lr 0.02, momentum 0.1", "lr 0.02, momentum 0.5", "lr 1.0, momentum 0.1", "lr 1.0, momentum 0.5")
    ]
    write_report(runs, 0.2, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<h1>Sweep of 4 points with FedBCGD</h1>" in page
    assert "FedBCGD (" not in page
    for number in (2, 3):  # points without a round still tell which settings differ
        (sweep / f"{number:03d}/rounds.jsonl").write_text("")
    assert [run.label for run in read_runs([sweep])] == ["lr 0.02, momentum 0.1", "lr 0.02, momentum 0.5"]


def test_labels_that_are_cut_start_with_the_number_of_the_point(folder: Path, tmp_path: Path) -> None:
    values = (0.123456789012345, 0.123456789012346)
    sweep = grid(folder / "fedbcgd", tmp_path / "sweep", lr_decay=(0.25, 0.5), momentum=values)
    labels = [shortened(run.label) for run in read_runs([sweep])]
    assert len(set(labels)) == 4, labels
    assert labels[3].startswith("003: ")


def test_a_best_value_at_the_edge_of_the_grid_gives_a_hint() -> None:
    assert edge_hints(POINTS, POINTS[2]) == []
    (line,) = edge_hints(POINTS, POINTS[0])
    assert line == "algorithm.lr = 0.03 is the lowest value of the grid; also try lower ones"
    assert "highest" in edge_hints(POINTS, POINTS[1])[0]
    assert edge_hints(POINTS[:2], POINTS[0]) == [], "of two values, one is always at an edge"
    names = [point(k, 0.5, name=name) for k, name in enumerate(("a", "b", "c"))]
    assert edge_hints(names, names[0]) == []


def test_the_time_left_counts_only_rounds_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("raybcgd.report.points.monotonic", lambda: now)
    folders = [tmp_path / f"{number:03d}" for number in range(3)]
    logs = [RunFolder(folder).rounds for folder in folders]
    for folder in folders:
        folder.mkdir()
    logs[0].write_text("{}\n" * 10)
    logs[1].write_text("{}\n" * 5)  # stopped early in the first process
    points = Points(Display(), folders, [10, 10, 40])
    points.end(0, "")
    points.end(1, "")
    assert points.left == "", "nothing is known yet"
    now = 8.0
    logs[2].write_text("{}\n" * 2)
    points.update()
    assert points.left == "", "two rounds say little"
    logs[2].write_text("{}\n" * 20)
    points.update()
    assert points.left == "8 s left"


def test_the_bar_counts_the_rounds_that_ran_and_stops_at_the_end(tmp_path: Path) -> None:
    folders = [tmp_path / f"{number:03d}" for number in range(2)]
    for folder in folders:
        folder.mkdir()
    RunFolder(folders[0]).rounds.write_text("{}\n" * 10)
    points = Points(Display(), folders, [10, 10])
    (bar,) = points.screen.bars
    points.end(0, "")
    assert (bar.done, bar.rounds, bar.texts["stage"]) == (10, 20, "1 of 2 points done")
    points.end(1, "", failed=True)  # in its first round
    assert bar.plain(80).endswith("10/10  2 points done"), bar.plain(80)
    assert "stage" not in bar.texts, "a stage shows a spinner"


def test_a_value_that_is_twice_in_the_grid_is_refused(tmp_path: Path) -> None:
    from raybcgd.sweep import sweep

    with pytest.raises(ConfigError, match=r"^the grid has algorithm\.lr = 0\.1 twice; remove one of them$"):
        sweep(small(), {"algorithm.lr": [0.1, 0.2, 0.1]}, out=tmp_path / "sweep", progress=False)


@pytest.mark.parametrize("key", ["data.validation_share", "data.evaluate_on"])
def test_points_on_different_samples_are_refused(key: str, tmp_path: Path) -> None:
    from raybcgd.sweep import sweep

    with pytest.raises(ConfigError, match=f"^the grid has {key}: .* cannot be compared; remove it$"):
        sweep(small(), {key: [0.1, 0.2]}, out=tmp_path / "sweep", progress=False)
    assert not (tmp_path / "sweep").exists()


def test_a_target_that_no_point_reaches_has_a_fix(tmp_path: Path) -> None:
    from raybcgd.sweep import _report

    points = [point(number, 0.5, None, lr=0.1) for number in range(2)]
    message = "upload_d_to_target is missing in every run; lower compare.target, or use another metric$"
    with pytest.raises(RunError, match=message):
        _report(points, [small()] * 2, "upload_d_to_target", 0.1, tmp_path)
