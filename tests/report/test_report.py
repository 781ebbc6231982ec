"""`raybcgd report`: a self-contained page of runs."""

import json
import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from raybcgd.compare.comparison import compare
from raybcgd.config import Config
from raybcgd.errors import ConfigError
from raybcgd.record.rounds import Dropped, RoundLog, Timing
from raybcgd.record.summary import failed_standing, typical_seconds
from raybcgd.report.html_tables import _to_target, failure_table, summary_table
from raybcgd.report.page import draw, write_report
from raybcgd.report.runs import methods_of, read_runs
from raybcgd.report.style import drawing, scale_losses
from raybcgd.report.tables import conditions
from tests.conftest import small
from tests.report.conftest import FIGURES, report


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


def test_a_single_run_is_not_compared_with_a_target_that_nobody_set(folder: Path, tmp_path: Path) -> None:
    config = (folder / "fedbcgd/config.toml").read_text()
    alone = shutil.copytree(folder / "fedbcgd", tmp_path / "alone")
    (alone / "config.toml").write_text(config.replace("target = 0.2", "target = 0.99"))
    assert report(alone).exit_code == 0
    text = (alone / "report.html").read_text()
    assert "99 %" not in text
    assert "reduction" not in text


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
        ("planned.json", "planned.json is not a list of planned runs; restore it, or delete it"),
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
    assert labels == ["FedAvg (methods)", "FedAvg (again)"]


def test_runs_that_differ_in_their_settings_are_named_by_them(folder: Path, tmp_path: Path) -> None:
    """Such as the points of a sweep, which are in numbered folders."""
    for number, lr in enumerate((0.05, 0.1)):
        one = shutil.copytree(folder / "fedavg", tmp_path / f"{number:03d}")
        config = one / "config.toml"
        config.write_text(re.sub(r"^lr = .*$", f"lr = {lr}", config.read_text(), flags=re.MULTILINE))
    assert [run.label for run in read_runs([tmp_path])] == ["lr 0.05", "lr 0.1"]
    assert report(tmp_path).exit_code == 0
    assert "<h1>2 runs of FedAvg with different settings</h1>" in (tmp_path / "report.html").read_text()
    labels = [run.label for run in read_runs([tmp_path, folder / "fedbcgd"])]
    assert labels == ["lr 0.05 (FedAvg)", "lr 0.1 (FedAvg)", "FedBCGD"]


def test_the_page_lists_the_hyper_parameters_of_every_run(page: Path) -> None:
    settings = page.read_text().split('<section id="settings">')[1].split("</section>")[0]
    for method in ("FedAvg", "FedBCGD", "FedBCGD+"):
        row = settings.split(f"<td>{method}</td>")[1].split("</tr>")[0]
        assert "lr = 0.05" in row
        assert ("momentum = 0.5" in row) == (method != "FedAvg")
    assert "local.batch_size = 20" in settings


def test_the_page_says_which_limit_ended_a_run(folder: Path, tmp_path: Path) -> None:
    done = read_runs([folder / "fedavg", folder / "fedbcgd"])
    budget = done[0].config.budget.model_copy(update={"patience": 1})
    config = done[0].config.model_copy(update={"rounds": 50, "budget": budget})
    qualities = [one.quality.model_copy(update={"accuracy": 0.5}) for one in done[0].records]
    records = [one.model_copy(update={"quality": q}) for one, q in zip(done[0].records, qualities, strict=True)]
    write_report([replace(done[0], config=config, records=tuple(records)), done[1]], 0.2, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    reason = "budget.patience = 1: no new best in the last 5 evaluations"
    assert f"<strong>Ended early: FedAvg, round 6 of 50 ({reason}).</strong>" in text
    assert "<td>FedAvg</td><td>6 of 50</td>" in text
    assert "<td>FedBCGD</td><td>6</td>" in text
    assert "<th>final accuracy</th>" in text


def test_the_page_says_which_data_the_accuracy_is_measured_on(page: Path, folder: Path, tmp_path: Path) -> None:
    assert "It is measured on the test data.</p>" in page.read_text()
    first, second = read_runs([folder / "fedavg", folder / "fedbcgd"])
    data = first.config.data.model_copy(update={"validation_share": 0.1, "evaluate_on": "validation"})
    tuned = replace(first, config=first.config.model_copy(update={"data": data}))
    for runs, words in (([tuned], "validation data."), ([tuned, second], "test data, or on the validation data if")):
        write_report(runs, 0.2, tmp_path / "page.html")
        assert f"It is measured on the {words}" in (tmp_path / "page.html").read_text()


def test_runs_on_different_data_get_no_headline(folder: Path, tmp_path: Path) -> None:
    first, second = read_runs([folder / "fedavg", folder / "fedbcgd"])
    data = second.config.data.model_copy(update={"source": "other"})
    second = replace(second, config=second.config.model_copy(update={"data": data, "seed": 7}))
    write_report([first, second], 0.2, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<h1>2 runs with different data or models</h1>" in text
    assert f"The first run: {conditions(first.config, first.records[0])}.</p>" in text, "with its own seed only"


def test_moved_clients_are_no_failures(folder: Path) -> None:
    (run,) = read_runs([folder / "fedavg"])
    hosts = run.records[3].hosts.model_copy(update={"rehomed_clients": 3})
    records = tuple(record.model_copy(update={"hosts": hosts}) for record in run.records)
    moved = replace(run, records=records)
    assert not moved.had_failures
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


def test_centralised_training_is_never_the_best_and_saves_nothing(folder: Path) -> None:
    runs = read_runs([folder])
    assert runs[1].partition is not None
    alone = runs[1].partition.model_copy(update={"clients": 1})
    text = summary_table(methods_of([runs[0], replace(runs[1], partition=alone), runs[2]]), 0.2)
    row = text.split("<td>FedBCGD</td>")[1].split("</tr>")[0]
    assert "best" not in row
    assert "×" not in row  # noqa: RUF001
    assert "FedBCGD: the data is in one place: there is no federated upload, and no drift." in text


def test_the_conditions_are_those_of_a_federated_run(tmp_path: Path) -> None:
    variants = [{"algorithm": {"name": name}} for name in ("sgd", "fedavg")]
    result = compare(small(rounds=1, compare={"variants": variants}), out=tmp_path / "both", progress=False)
    assert report(result.folder).exit_code == 0
    assert ", 6 clients per round," in (result.folder / "report.html").read_text()


def test_a_run_that_diverges_does_not_flatten_the_others() -> None:
    with drawing() as new:
        axes = new(4, 3).subplots()
        scale_losses(axes, [[2.0, 1.5, 1.0], [2.3, 1.9, 1e15, math.inf], [None]])
        assert axes.get_ylabel() == "loss (cut at 23)"
        assert axes.get_ylim()[1] == pytest.approx(23)
        axes = new(4, 3).subplots()
        scale_losses(axes, [[2.0, 1.0, 0.1], [2.3, 1e15]])
        assert axes.get_ylabel() == "loss (log scale, cut at 23)"
        assert axes.get_ylim() == pytest.approx((0.08, 23))
        axes = new(4, 3).subplots()
        scale_losses(axes, [[2.0, 1.5]])
        assert axes.get_ylabel() == "loss"


def test_a_method_that_falls_back_below_the_target_is_not_the_best() -> None:
    line = failed_standing("A", "fedavg", "")._replace(
        rounds=3, rounds_to_target=1.0, upload_d_to_target=1.0, upload_floats_to_target=1, upload_bytes_to_target=4
    )
    stays, falls = line._replace(last_tenth_accuracy=0.9), line._replace(last_tenth_accuracy=0.1)
    assert all(cell.score is not None for cell in _to_target(stays, 0.5).values())
    assert all(cell.score is None for cell in _to_target(falls, 0.5).values())


def test_centralised_training_has_no_figures_of_clients(folder: Path) -> None:
    runs = read_runs([folder])[:2]
    assert runs[1].partition is not None
    pooled = replace(runs[1], partition=runs[1].partition.model_copy(update={"clients": 1}))
    with drawing() as new:
        drawn = draw(new, [runs[0], pooled], None)
        titles = {name: [axes.get_title("left") for axes in figure.axes[:-1]] for name, figure in drawn.items()}
        assert titles["drift"] == [runs[0].label]
        assert titles["movement"] == [runs[0].label, runs[1].label]
        assert titles["partition"] == ["digits"]
        assert {"drift", "clients"}.isdisjoint(draw(new, [pooled], None))


def test_equal_texts_in_a_column_are_equally_bold(folder: Path) -> None:
    run = read_runs([folder / "fedavg"])[0]
    quality = run.records[-1].quality
    nearly = quality.model_copy(update={"accuracy": (quality.accuracy or 0) - 1e-6})
    records = (*run.records[:-1], run.records[-1].model_copy(update={"quality": nearly}))
    text = summary_table(methods_of([run, replace(run, label="B", method="B", records=records)]), 0.2)
    assert text.count(f'<td class="best">{quality.accuracy:.1%}</td>') >= 2


def test_a_run_without_evaluated_rounds_has_a_report(folder: Path, tmp_path: Path) -> None:
    (run,) = read_runs([folder / "fedavg"])
    first = run.records[0]
    blind = first.model_copy(update={"quality": first.quality.model_copy(update={"accuracy": None, "loss": None})})
    write_report([replace(run, records=(blind,))], 0.9, tmp_path / "page.html")
    found = re.findall(r'<figure id="(\w+)">', (tmp_path / "page.html").read_text())
    assert found == ["drift", "movement", "upload", "partition"]


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
        (["nowhere"], "nowhere: no such folder"),
        (["{folder}", "--target", "90"], "--target 90 is not an accuracy"),
        (["{folder}", "--out", "/proc/none/x.html"], "choose another --out"),
    ],
)
def test_an_error_is_one_line(arguments: list[str], words: str, folder: Path) -> None:
    result = report(*(argument.format(folder=folder) for argument in arguments))
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_comparisons_inside_a_folder_are_named_instead_of_silently_left_out(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(folder, tmp_path / "runs" / "comparison")
    with pytest.raises(ConfigError, match=f"pass the folders inside it: {tmp_path}/runs/comparison$"):
        read_runs([tmp_path / "runs"])
    shutil.copytree(folder / "fedavg", tmp_path / "runs" / "single")
    assert len(read_runs([tmp_path / "runs"])) == 1
    assert f"note: comparisons and sweeps inside {tmp_path}/runs are left out" in caplog.text


def test_the_time_per_round_leaves_out_the_first_round(folder: Path) -> None:
    (run,) = read_runs([folder / "fedavg"])
    record = run.records[0]
    slow, fast = (record.model_copy(update={"timing": Timing(seconds=s, stage_seconds={})}) for s in (9.0, 0.5))
    assert typical_seconds([slow, fast]) == 0.5
    assert typical_seconds([slow]) == 9.0
    assert typical_seconds([]) is None
