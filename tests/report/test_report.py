"""`raybcgd report`: a self-contained page with every figure, checked in a browser."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from matplotlib.colors import to_hex
from PIL import Image
from typer.testing import CliRunner, Result

from raybcgd.cli import app
from raybcgd.compare.comparison import compare
from raybcgd.config import Config
from raybcgd.record.rounds import Dropped, RoundLog
from raybcgd.report import figures
from raybcgd.report.page import write_report
from raybcgd.report.plots import upload_figure
from raybcgd.report.runs import methods_of, read_runs
from raybcgd.report.style import drawing, line_styles, log_ticks
from raybcgd.report.tables import conditions, failure_table, summary_table
from raybcgd.report.tensorboard import scalars
from tests.conftest import small

FIGURES = ["accuracy", "loss", "stages", "drift", "movement", "upload", "partition"]
CHROMIUM = shutil.which("chromium")
# Browsers contact their vendor; these flags cut off the network.
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
    """A page in a browser."""

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
    # The browser's own requests have no origin; those of a page have one.
    asked = [job["url"] for job in jobs if job.get("initiator") != "not an origin"]
    return Seen(done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line], asked)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium (Debian's package) is not installed")
def test_a_browser_shows_every_figure_without_errors_or_requests(page: Path, tmp_path: Path) -> None:
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
def test_the_browser_test_sees_errors_and_requests(tmp_path: Path) -> None:
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


def test_every_figure_is_also_a_png(page: Path) -> None:
    for name in FIGURES:
        with Image.open(page.with_name(f"report-{name}.png")) as image:
            assert image.width > 1000


def test_the_table_reports_floats_to_the_target(page: Path, folder: Path) -> None:
    runs = read_runs([folder])
    assert [run.label for run in runs] == ["FedAvg", "FedBCGD", "FedBCGD+"]
    assert [run.config.metrics.target for run in runs] == [0.2] * 3  # the report's default
    text = summary_table(methods_of(runs), 0.2)
    assert "<th>floats to 20 %</th>" in text
    for run in runs:
        k = run.reaches(0.2)
        log = list(RoundLog(run.folder / "rounds.jsonl"))
        if k is not None:
            assert re.search(rf">{sum(record.traffic.upload_floats for record in log[: k + 1]):,}\*?</td>", text)
        assert f"{100 * (log[-1].quality.accuracy or 0):.1f}%" in text


def test_a_single_run_is_read_from_its_own_folder(folder: Path, tmp_path: Path) -> None:
    result = report(folder / "fedbcgd", "--out", tmp_path / "deep/one.html", "--target", "0.99")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "deep/one.html").read_text()
    final = json.loads((folder / "fedbcgd/summary.json").read_text())["final_accuracy"]
    assert f"<h1>FedBCGD: {final:.1%} after 6 rounds</h1>" in text, "a single run is not compared with a target"
    assert ">never</td>" in text


def test_failures_are_drawn_and_listed(folder: Path, tmp_path: Path) -> None:
    (run, *_) = read_runs([folder / "fedavg"])
    lost = (Dropped(client=7, block=None, reason="ValueError: <no & data>"),)
    records = list(run.records)
    hosts = records[3].hosts.model_copy(update={"retried_tasks": 2, "restarted": 1})
    records[3] = records[3].model_copy(update={"dropped": lost, "hosts": hosts})
    write_report([replace(run, records=tuple(records))], 0.9, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert '<figure id="failures">' in text
    assert "<td>FedAvg</td><td>1</td><td>2</td><td>1</td>" in text
    assert "client 7: ValueError: &lt;no &amp; data&gt;" in text


def test_heat_maps_share_one_scale(folder: Path) -> None:
    """Runs of different lengths; zeros, which a logarithmic scale cannot show; unknown values."""
    long, short = read_runs([folder / "fedavg", folder / "fedbcgd"])
    short = replace(short, records=short.records[:3])
    values = {long.label: [[0.5, 0.0, 3.0]] * 6, short.label: [[None, 7.0, 1.0]] * 3}
    with drawing() as new:
        figure = figures.by_block(new, [long, short], lambda run: values[run.label], "x")
        assert figure is not None
        images = [axes.images[0] for axes in figure.axes if axes.images]
        assert [(image.norm.vmin, image.norm.vmax) for image in images] == [(0.5, 7.0)] * 2
        assert [image.get_array().shape for image in images] == [(3, 6), (3, 3)]
        assert figures.by_block(new, [long, short], lambda _: [[None, 0.0]] * 3, "x") is None


def test_a_run_has_the_same_colour_in_the_plot_and_on_the_page(folder: Path) -> None:
    runs = read_runs([folder])
    with drawing() as new:
        methods = methods_of(runs)
        plot = upload_figure(new, {run.label: [run.records] for run in runs}, 0.2, "subject")
        page = [figures.accuracy(new, methods, 0.2), figures.loss(new, methods)]
        bars = figures.uploads(new, methods)
    styles = [_line_styles(axes) for figure in (plot, *page) for axes in figure.axes]
    assert list(styles[0]) == ["FedAvg", "FedBCGD", "FedBCGD+"]
    assert len(set(styles[0].values())) == 3
    assert styles == [styles[0]] * 7
    filled = {bar.get_label(): to_hex(bar.patches[0].get_facecolor()) for bar in bars.axes[0].containers}
    assert filled == {label: colour for label, (colour, _) in styles[0].items()}


def _line_styles(axes: Any) -> dict[str, tuple[str, str]]:
    """Return the colour and dash of each labelled line."""
    lines = [line for line in axes.lines if not line.get_label().startswith("_")]
    return {line.get_label(): (to_hex(line.get_color()), line.get_linestyle()) for line in lines}


def test_the_page_and_the_plot_state_the_same_conditions(page: Path, folder: Path) -> None:
    (run, *_) = read_runs([folder])
    text = conditions(run.config, run.records[0])
    assert text == "mlp on digits, 20 clients, Dirichlet(0.3), 6 clients per round, seed 0"
    assert f"<p>{text}.</p>" in page.read_text()


def test_variants_keep_their_labels_and_their_order(tmp_path: Path) -> None:
    variants = [{"label": "Zero momentum", "algorithm": {"momentum": 0.0}}, {"label": "A half", "algorithm": {}}]
    base = small(rounds=1, metrics={"enabled": False}).model_dump()
    compare(Config.model_validate({**base, "compare": {"variants": variants}}), out=tmp_path / "two")
    assert [run.label for run in read_runs([tmp_path / "two"])] == ["Zero momentum", "A half"]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("fedavg/rounds.jsonl", "rounds.jsonl, line 3, is not a round record"),
        ("fedavg/partition.json", "partition.json is not a partition record; delete it"),
        ("comparison.json", "comparison.json is not a comparison record; restore it, or delete it"),
    ],
)
def test_damaged_files_are_named(file: str, words: str, folder: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    lines = (damaged / file).read_text().splitlines()
    (damaged / file).write_text("\n".join([*lines[:2], "{cut", ""]))  # a line without its end would be ignored
    result = report(damaged)
    assert result.exit_code == 2, result.output
    assert words in result.output


def test_runs_of_the_same_method_get_different_labels(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "fedavg", tmp_path / "again")
    labels = [run.label for run in read_runs([folder / "fedavg", tmp_path / "again"])]
    assert labels == ["FedAvg (fedavg)", "FedAvg (again)"]


def test_runs_that_differ_in_their_settings_are_named_by_them(folder: Path, tmp_path: Path) -> None:
    """Such as the points of a sweep, which are in numbered folders."""
    for number, lr in enumerate((0.05, 0.1)):
        one = shutil.copytree(folder / "fedavg", tmp_path / f"{number:03d}")
        config = one / "config.toml"
        config.write_text(re.sub(r"^lr = .*$", f"lr = {lr}", config.read_text(), flags=re.MULTILINE))
    assert [run.label for run in read_runs([tmp_path])] == ["FedAvg (lr = 0.05)", "FedAvg (lr = 0.1)"]


def test_the_page_lists_the_hyper_parameters_of_every_run(page: Path) -> None:
    settings = page.read_text().split('<section id="settings">')[1].split("</section>")[0]
    for method in ("FedAvg", "FedBCGD", "FedBCGD+"):
        row = settings.split(f"<td>{method}</td>")[1].split("</tr>")[0]
        assert "lr = 0.05" in row
        assert ("momentum = 0.5" in row) == (method != "FedAvg")
    assert "local.batch_size = 20" in settings


def test_runs_on_different_data_get_no_headline(folder: Path, tmp_path: Path) -> None:
    first, second = read_runs([folder / "fedavg", folder / "fedbcgd"])
    data = second.config.data.model_copy(update={"source": "other"})
    second = replace(second, config=second.config.model_copy(update={"data": data}))
    write_report([first, second], 0.2, tmp_path / "page.html")
    assert "<h1>2 runs with different data or models</h1>" in (tmp_path / "page.html").read_text()


def test_moved_clients_are_no_failures(folder: Path) -> None:
    (run,) = read_runs([folder / "fedavg"])
    hosts = run.records[3].hosts.model_copy(update={"rehomed_clients": 3})
    records = tuple(record.model_copy(update={"hosts": hosts}) for record in run.records)
    moved = replace(run, records=records)
    assert not moved.failed
    assert "None: no client was dropped" in failure_table([moved])
    assert "to balance the load: FedAvg 50%" in failure_table([moved])


def test_one_evaluation_has_no_deviation_and_time_means_the_rounds(folder: Path) -> None:
    (run,) = read_runs([folder / "fedavg"])
    assert "±" not in summary_table(methods_of([run]), 0.2)
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["seconds"] == pytest.approx(run.elapsed[-1])
    assert summary["total_seconds"] > summary["seconds"]
    line = json.loads((folder / "comparison.json").read_text())["runs"][0]
    assert line["seconds"] == summary["seconds"]


def test_axes_fit_the_data_and_count_whole_rounds(folder: Path) -> None:
    methods = methods_of(read_runs([folder]))
    values = [100 * value for method in methods for value in method.first.accuracies]
    with drawing() as new:
        figure = figures.accuracy(new, methods, 0.99)
        figure.canvas.draw()
    low, high = figure.axes[0].get_ylim()
    assert high - low < 1.3 * (max(values) - min(values))
    assert all(tick == int(tick) for tick in figure.axes[0].get_xticks())
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.get_xticklabels() if text.get_text()]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1.0, 60.0, [1, 2, 5, 10, 20, 50]),
        (0.01, 3.0, [0.01, 0.03, 0.1, 0.3, 1, 3]),
        (1e3, 1e9, [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9]),
        (1e-6, 1e6, [1e-6, 1e-4, 1e-2, 1e0, 1e2, 1e4, 1e6]),
    ],
)
def test_ticks_of_a_logarithmic_axis(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high, most=7) == pytest.approx(ticks)


def test_a_method_has_one_colour_in_every_report() -> None:
    assert line_styles(["FedBCGD+", "Mine"])["FedBCGD+"] == line_styles(["FedAvg", "FedBCGD+"])["FedBCGD+"]
    many = line_styles([*"abcdefghijkl", "FedAvg", "SCAFFOLD"]).values()
    assert len({(style["color"], style["linestyle"]) for style in many}) == 14


def test_figures_without_data_are_left_out(folder: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(folder / "fedbcgd", tmp_path / "bare")
    (bare / "partition.json").unlink()
    lines = [json.loads(line) for line in (bare / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line["blocks"]["movement"] = []
        del line["blocks"]["server_norms"]
    (bare / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert report(bare).exit_code == 0
    found = re.findall(r'<figure id="(\w+)">', (bare / "report.html").read_text())
    assert found == ["accuracy", "loss", "stages", "drift", "upload"]


def test_a_run_without_evaluated_rounds_has_a_report(folder: Path, tmp_path: Path) -> None:
    (run,) = read_runs([folder / "fedavg"])
    first = run.records[0]
    blind = first.model_copy(update={"quality": first.quality.model_copy(update={"accuracy": None, "loss": None})})
    write_report([replace(run, records=(blind,))], 0.9, tmp_path / "page.html")
    found = re.findall(r'<figure id="(\w+)">', (tmp_path / "page.html").read_text())
    assert found == ["stages", "drift", "movement", "upload", "partition"]


def test_a_run_of_an_older_version_is_refused_with_one_line(folder: Path, tmp_path: Path) -> None:
    old = shutil.copytree(folder / "fedbcgd", tmp_path / "old")
    config = old / "config.toml"
    config.write_text(re.sub(r"^version = .*\n", "", config.read_text(), flags=re.MULTILINE))
    result = report(old)
    assert result.exit_code == 2
    assert "was written by another version of raybcgd" in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_the_same_runs_give_the_same_page(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(read_runs([folder / "fedavg"]), 0.9, tmp_path / f"{name}.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere contains no run"),
        (["{folder}", "--target", "90"], "--target 90 is not an accuracy"),
        (["{folder}", "--out", "/proc/none/x.html"], "choose another --out"),
    ],
)
def test_an_error_is_one_line(arguments: list[str], words: str, folder: Path) -> None:
    result = report(*(argument.format(folder=folder) for argument in arguments))
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_without_tensorboard_the_error_says_what_to_install(
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
    assert seen == pytest.approx([record.quality.accuracy for record in log])


def test_tensorboard_curves_are_fields_of_the_record(folder: Path) -> None:
    record = next(iter(RoundLog(folder / "fedbcgd_plus/rounds.jsonl")))
    curves = scalars(record)
    assert curves["quality/accuracy"] == record.quality.accuracy
    assert curves["traffic/upload_d_total"] == record.traffic.upload_d_total
    assert curves["blocks/server_norms/v/shared"] == record.blocks.server_norms["v"][-1]
    assert curves["timing/stage_seconds/train"] == record.timing.stage_seconds["train"]
    assert curves["clients/participants"] == len(record.participants)
