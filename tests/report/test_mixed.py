"""Reports of several comparisons, of comparisons and other runs, and of classification and regression."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from raybcgd.cli import app
from raybcgd.compare.comparison import compare
from raybcgd.data.dataset import Dataset
from raybcgd.experiment import run
from raybcgd.report.runs import methods_of, read_runs
from raybcgd.report.watch import LivePage
from tests.conftest import small
from tests.report.conftest import report


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two methods over two seeds, with other blocks than `folder`."""
    variants = {"seeds": [0, 1], "variants": [{"algorithm": {"name": name}} for name in ("fedavg", "scaffold")]}
    config = small(rounds=2, blocks={"count": 2}, compare=variants)
    return compare(config, out=tmp_path_factory.mktemp("mixed") / "seeded", progress=False).folder


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that belongs to no comparison."""
    out = tmp_path_factory.mktemp("mixed") / "single"
    run(small(rounds=3, algorithm={"name": "fedavg"}), out=out, progress=False)
    return out


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A regression."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    y, out = x.sum(1), tmp_path_factory.mktemp("mixed") / "regression"
    data = Dataset.from_tensors(x[:250], y[:250], x[250:], y[250:])
    config = small(rounds=2, data={"partition": {"kind": "iid", "clients": 10}}, model={"loss": "mse"})
    run(config, dataset=data, out=out, progress=False)
    return out


def rows(page: Path) -> dict[str, list[str]]:
    """Return the rows of the first table by method."""
    table = page.read_text().split("<tbody>")[1].split("</tbody>")[0]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("</tr>") if row]
    return {found[0]: found[1:] for found in cells}


def test_a_mean_over_seeds_is_over_the_runs_of_one_comparison(
    folder: Path, seeded: Path, single: Path, tmp_path: Path
) -> None:
    places = [seeded, single, folder]
    for order in (places, places[::-1]):
        assert report(*order, "--out", tmp_path / "page.html").exit_code == 0
        found = rows(tmp_path / "page.html")
        ends = ["seeded"] * 2 + ["methods"] * 3
        names = ["FedAvg", "SCAFFOLD", "FedAvg", "FedBCGD", "FedBCGD+"]
        assert set(found) == {f"{n} ({end})" for n, end in zip(names, ends, strict=True)} | {"FedAvg (single)"}
        assert [found[f"FedAvg ({end})"][0] for end in ("seeded", "single", "methods")] == ["2", "3", "6"]
    assert report(seeded, "--out", tmp_path / "alone.html").exit_code == 0
    assert rows(tmp_path / "alone.html")["FedAvg"][1:4] == found["FedAvg (seeded)"][1:4]


def test_a_run_beside_means_over_seeds_is_not_ranked_with_them(seeded: Path, single: Path, tmp_path: Path) -> None:
    """And the reference of the table is FedAvg, although another method comes first."""
    page = tmp_path / "page.html"
    assert report(seeded, "--out", page, "--target", "0.05").exit_code == 0
    assert 'class="best"' in page.read_text()
    assert report(single, seeded, "--out", page, "--target", "0.05").exit_code == 0
    assert 'class="best"' not in page.read_text()


def test_several_other_runs_are_still_named_by_their_settings(seeded: Path, single: Path, tmp_path: Path) -> None:
    for number, lr in enumerate((0.05, 0.1)):
        config = shutil.copytree(single, tmp_path / f"{number:03d}") / "config.toml"
        config.write_text(re.sub(r"^lr = .*$", f"lr = {lr}", config.read_text(), flags=re.MULTILINE))
    found = [method.label for method in methods_of(read_runs([seeded, tmp_path]))]
    assert found == ["FedAvg (seeded)", "SCAFFOLD (seeded)", "lr 0.05 (FedAvg)", "lr 0.1 (FedAvg)"]


def test_comparisons_without_a_common_method_keep_their_labels(folder: Path, seeded: Path) -> None:
    runs = read_runs([folder / "fedbcgd", *(seeded / f"scaffold-seed-{seed}" for seed in (0, 1))])
    assert [method.label for method in methods_of(runs)] == ["FedBCGD", "SCAFFOLD"]


def test_comparisons_in_folders_of_the_same_name_have_their_paths_as_labels(seeded: Path, tmp_path: Path) -> None:
    config = small(rounds=1, compare={"variants": [{"algorithm": {"name": "fedavg"}}]})
    other = compare(config, out=tmp_path / "seeded", progress=False).folder
    found = {method.label for method in methods_of(read_runs([seeded, other]))}
    assert found == {f"FedAvg ({seeded})", f"SCAFFOLD ({seeded})", f"FedAvg ({other})"}


def test_a_failed_run_is_in_the_row_of_its_comparison(folder: Path, tmp_path: Path) -> None:
    variants = [{"algorithm": {"name": "fedavg"}}, {"label": "bad", "algorithm": {"name": "fedavg", "lr": 1e300}}]
    broken = compare(small(rounds=1, compare={"variants": variants}), out=tmp_path / "broken", progress=False).folder
    assert report(folder, broken, "--out", tmp_path / "page.html").exit_code == 0
    assert rows(tmp_path / "page.html")["bad (broken)"][0] == "failed"


def test_a_report_of_regression_and_classification_has_both_columns(
    folder: Path, single: Path, regression: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    for others in ([single], [folder]):
        for order in ([*others, regression], [regression, *others]):
            assert report(*order, "--out", page).exit_code == 0
            text, found = page.read_text(), rows(page)
            heads = re.findall("<th>(.*?)</th>", text.split("</thead>")[0])
            assert heads.index("final loss") < heads.index("d per round")
            (name,) = (name for name, cells in found.items() if cells[heads.index("final loss") - 1] != "-")
            assert found[name][heads.index("final accuracy") - 1] == "-"
            assert 'class="best"' not in text, "different data cannot be compared"
            assert "upload reduction" not in text


def test_a_page_that_cannot_be_drawn_does_not_stop_the_server(
    single: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("raybcgd.report.watch.write_report", broken)
    assert b"Waiting for the first round" in LivePage([single]).html()
    assert "cannot draw the report" in caplog.text
    assert "a bug" in caplog.text


def test_exported_rows_name_the_folder_of_their_run(seeded: Path, single: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(seeded), str(single), "--csv", str(tmp_path / "rounds.csv")])
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "rounds.csv")
    assert sorted(table.groupby("folder").size()) == [2, 2, 2, 2, 3]
    assert set(table[table.folder == str(single)].run) == {"FedAvg (single)"}
