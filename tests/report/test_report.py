"""`raybcgd report`: one page that stands alone, with every figure, as a real browser sees it."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from raybcgd.cli import app
from raybcgd.compare.comparison import compare
from raybcgd.config import Config
from raybcgd.record.rounds import Dropped, RoundLog
from raybcgd.report.figures import by_block
from raybcgd.report.page import write_report
from raybcgd.report.runs import Run, read_runs, target_of
from raybcgd.report.style import drawing
from raybcgd.report.tables import summary_table
from raybcgd.report.tensorboard import scalars
from tests.conftest import small

FIGURES = ["accuracy", "loss", "phases", "drift", "movement", "upload", "partition1"]
CHROMIUM = shutil.which("chromium")
# The browser may call its maker; here it reaches nobody.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
    "--dump-dom",
]


def report(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of three methods."""
    base = small(rounds=6, metrics={"enabled": False})
    variants = {"target": 0.2, "variants": [{"algorithm": {"name": n}} for n in ("fedavg", "fedbcgd", "fedbcgd+")]}
    config = Config.model_validate({**base.model_dump(), "compare": variants})
    return compare(config, out=tmp_path_factory.mktemp("report") / "methods").folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    result = report(folder, "--png")
    assert result.exit_code == 0, result.output
    return folder / "report.html"


class Seen(NamedTuple):
    """What a browser made of a page."""

    dom: str
    console: list[str]
    requests: list[str]


def browse(page: Path, folder: Path) -> Seen:
    assert CHROMIUM is not None
    log = folder / "net.json"
    done = subprocess.run(
        [
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={folder / 'profile'}",
            f"--log-net-log={log}",
            page.absolute().as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    net: dict[str, Any] = json.loads(log.read_text())
    start = net["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    jobs = [event["params"] for event in net["events"] if event["type"] == start and "url" in event.get("params", {})]
    # What the browser does for itself has no origin; what a page asks for has one.
    asked = [job["url"] for job in jobs if job.get("initiator") != "not an origin"]
    return Seen(done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line], asked)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium (Debian's package) is not installed")
def test_a_browser_shows_all_of_it_without_errors_and_asks_nobody(page: Path, tmp_path: Path) -> None:
    seen = browse(page, tmp_path)
    assert seen.console == []
    assert seen.requests == []
    assert re.findall(r'<figure id="(\w+)"><svg', seen.dom) == FIGURES
    for name in FIGURES:
        drawn = seen.dom.split(f'<figure id="{name}">')[1].split("</figure>")[0]
        assert drawn.count("<path") > 5, name
    for method in ("FedAvg", "FedBCGD", "FedBCGD+"):
        assert seen.dom.count(f">{method}</text>") >= 3  # legends and titles


@pytest.mark.skipif(CHROMIUM is None, reason="chromium (Debian's package) is not installed")
def test_that_test_would_notice(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text('<!DOCTYPE html><img src="http://127.0.0.1:9/x.png"><script>console.error("oops")</script>')
    seen = browse(page, tmp_path)
    assert len(seen.console) == 1
    assert seen.requests == ["http://127.0.0.1:9/x.png"]


def test_the_page_refers_to_nothing_outside_itself(page: Path) -> None:
    text = page.read_text()

    class Links(HTMLParser):
        found: list[str]

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag != "script"
            self.found += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "action", "data")]

    links = Links()
    links.found = []
    links.feed(text)
    assert all(link.startswith(("#", "data:")) for link in links.found)
    assert not re.findall(r"url\((?!#)|@import", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(set(ids)) == len(ids)


def test_every_figure_is_a_picture_too(page: Path) -> None:
    for name in FIGURES:
        with Image.open(page.with_name(f"report-{name}.png")) as picture:
            assert picture.width > 1000


def test_the_table_has_the_papers_form(page: Path, folder: Path) -> None:
    runs = read_runs([folder])
    assert [run.label for run in runs] == ["FedAvg", "FedBCGD", "FedBCGD+"]
    assert target_of([folder], runs) == 0.2
    text = summary_table(runs, 0.2)
    assert "<th>floats to 20 %</th>" in text
    for run in runs:
        k = run.reaches(0.2)
        log = list(RoundLog(run.folder / "rounds.jsonl"))
        if k is not None:
            assert f">{sum(record.upload_floats for record in log[: k + 1]):,}</td>" in text
        assert f"{100 * (log[-1].accuracy or 0):.1f}%" in text


def test_one_run_alone_and_by_its_own_folder(folder: Path, tmp_path: Path) -> None:
    result = report(folder / "fedbcgd", "--out", tmp_path / "deep/one.html", "--target", "0.99")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "deep/one.html").read_text()
    assert "Nobody reached 99 %" in text
    assert ">never</td>" in text


def test_failures_are_drawn_and_told(folder: Path, tmp_path: Path) -> None:
    (run, *_) = read_runs([folder / "fedavg"])
    lost = (Dropped(client=7, block=None, reason="ValueError: <no & data>"),)
    records = tuple(
        record.model_copy(update={"dropped": lost, "retried": 2, "restarted": 1} if record.round == 3 else {})
        for record in run.records
    )
    write_report([Run(run.label, run.folder, run.config, records, run.partition)], 0.9, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert '<figure id="failures">' in text
    assert "client 7: ValueError: &lt;no &amp; data&gt;" in text


def test_heat_maps_share_the_scale_of_all_that_they_show(folder: Path) -> None:
    """Runs of different lengths; zeros, which a logarithmic scale does not have; nothing known."""
    long, short = read_runs([folder / "fedavg", folder / "fedbcgd"])
    short = Run(short.label, short.folder, short.config, short.records[:3], short.partition)
    values = {long.label: [[0.5, 0.0, 3.0]] * 6, short.label: [[None, 7.0, 1.0]] * 3}
    with drawing() as new:
        for log, lowest in ((True, 0.5), (False, 0.0)):
            figure = by_block(new, [long, short], lambda run: values[run.label], "x", log)
            assert figure is not None
            images = [axes.images[0] for axes in figure.axes if axes.images]
            assert [(image.norm.vmin, image.norm.vmax) for image in images] == [(lowest, 7.0)] * 2
            assert [image.get_array().shape for image in images] == [(3, 6), (3, 3)]


def test_variants_keep_their_labels_and_their_order(tmp_path: Path) -> None:
    variants = [{"label": "Zero momentum", "algorithm": {"momentum": 0.0}}, {"label": "A half", "algorithm": {}}]
    base = small(rounds=1, metrics={"enabled": False}).model_dump()
    compare(Config.model_validate({**base, "compare": {"variants": variants}}), out=tmp_path / "two")
    assert [run.label for run in read_runs([tmp_path / "two"])] == ["Zero momentum", "A half"]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("fedavg/rounds.jsonl", "rounds.jsonl, line 3, is not the record of a round"),
        ("fedavg/partition.json", "partition.json is not the record of a partition; remove it"),
        ("comparison.json", "comparison.json is not what `raybcgd compare` writes; restore or remove it"),
    ],
)
def test_damaged_files_are_named(file: str, words: str, folder: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    lines = (damaged / file).read_text().splitlines()
    (damaged / file).write_text("\n".join([*lines[:2], "{cut"]))
    result = report(damaged)
    assert result.exit_code == 2, result.output
    assert words in result.output


def test_runs_of_the_same_method_are_told_apart(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "fedavg", tmp_path / "again")
    labels = [run.label for run in read_runs([folder / "fedavg", tmp_path / "again"])]
    assert labels == ["FedAvg (fedavg)", "FedAvg (again)"]


def test_old_runs_without_the_newer_fields_are_shown_as_far_as_they_go(folder: Path, tmp_path: Path) -> None:
    old = shutil.copytree(folder / "fedbcgd", tmp_path / "old")
    (old / "partition.json").unlink()
    lines = [json.loads(line) for line in (old / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["movement"], line["server_norms"]
    (old / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert report(old).exit_code == 0
    found = re.findall(r'<figure id="(\w+)">', (old / "report.html").read_text())
    assert found == ["accuracy", "loss", "phases", "drift", "upload"]


def test_the_same_runs_give_the_same_page(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(read_runs([folder / "fedavg"]), 0.9, tmp_path / f"{name}.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere holds no run"),
        (["{folder}", "--target", "90"], "--target 90 is no accuracy"),
        (["{folder}", "--out", "/proc/none/x.html"], "choose another --out"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(arguments: list[str], words: str, folder: Path) -> None:
    result = report(*(argument.format(folder=folder) for argument in arguments))
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_tensorboard_is_asked_for_where_it_is_missing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = report(folder, "--tensorboard", tmp_path)
    assert result.exit_code == 2
    assert "pip install raybcgd[tensorboard]" in result.output


def test_tensorboard_gets_every_round(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert report(folder, "--tensorboard", tmp_path, "--out", tmp_path / "page.html").exit_code == 0
    events = EventAccumulator(str(tmp_path / "FedBCGD"))
    events.Reload()
    log = list(RoundLog(folder / "fedbcgd/rounds.jsonl"))
    seen = [event.value for event in events.Scalars("quality/accuracy")]
    assert seen == pytest.approx([record.accuracy for record in log])


def test_what_tensorboard_draws_is_numbers_of_the_record(folder: Path) -> None:
    record = next(iter(RoundLog(folder / "fedbcgd_plus/rounds.jsonl")))
    curves = scalars(record)
    assert curves["quality/accuracy"] == record.accuracy
    assert curves["norm_v/shared"] == record.server_norms["v"][-1]
    assert curves["time/train"] == record.phase_seconds["train"]
