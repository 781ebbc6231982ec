"""`raybcgd paper`: the list, a run beside the published numbers, the cache and the resume."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from raybcgd import Config
from raybcgd.cli import app
from raybcgd.config import load_config, make_config
from raybcgd.config.files import assign, tables_of
from raybcgd.paper import runs as paper_runs
from raybcgd.paper.catalogue import select
from raybcgd.paper.published import NEVER, Row
from raybcgd.paper.results import Comparison, Line, latex, markdown, numbers
from raybcgd.paper.runs import cache_key
from tests.conftest import small

DIGITS = {
    "engine": "local",
    "data.source": "digits",
    "data.augment": "[]",
    "data.partition.clients": 20,
    "model.name": "mlp",
    "model.options": "{ hidden = [16, 16, 16, 16, 16] }",
    "blocks.division": "layers",
    "local.epochs": 1,
    "algorithm.lr": 0.05,
    "budget.upload_d": 3,
    "evaluation.every": 1,
    "checkpoint.every": 1,
    "compare.target": 0.2,
}


def paper(*arguments: str, out: Path | None = None, **changes: Any) -> Result:
    command = ["paper", *arguments]
    for key, value in {**DIGITS, **changes}.items() if out else ():
        command += ["--set", f"{key}={value}"]
    return CliRunner().invoke(app, [*command, *(["--out", str(out)] if out else [])], env={"COLUMNS": "200"})


def test_the_list_shows_every_experiment_with_its_numbers() -> None:
    text = " ".join(paper().stdout.replace("│", " ").split())
    assert "table2" in text
    assert "figureC3" in text
    assert "FedBCGD+ 55.6 ± 0.3 (75 d)" in text
    assert "MC-PSGD, I = 20 1410 rounds" in text
    assert "FedAvg, cyclic 56-59" in text
    assert "block-cyclic" not in paper("fedpvr").stdout


def test_an_unknown_or_ambiguous_experiment_is_refused() -> None:
    result = paper("fedbcgd", "table1")
    assert result.exit_code == 2
    assert "no experiment has name table1; use one of table2, " in result.stderr
    result = paper("fedbcgd", "table2")
    assert (result.exit_code, "choose one with --model lenet5 --data cifar100 --rho 0.6, " in result.stderr) == (
        2,
        True,
    )
    assert "no experiment has paper fedavg; use one of fedbcgd, fedpvr, block-cyclic" in paper("fedavg").stderr


ONE = ("fedbcgd", "table2", "--model", "lenet5", "--methods", "FedAvg,FedBCGD")


def test_a_run_prints_ours_beside_theirs_and_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = paper(*ONE, out=tmp_path)
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "fedbcgd" / "table2-lenet5.json").read_text())
    rows = {row["method"]: row for row in written["rows"]}
    assert rows["FedAvg"]["paper"] == {"accuracy": 41.2, "deviation": 0.2, "upload_d": 558}
    assert rows["SCAFFOLD"]["ours"] is None
    ours = rows["FedBCGD"]["ours"]
    assert f"| FedBCGD | 55.7 ± 0.4 (77 d) | {ours['accuracy']:.1f} (" in result.stdout
    assert f"FedBCGD & 55.7 $\\pm$ 0.4 (77 d) & {ours['accuracy']:.1f} (" in result.stdout
    assert "engine=local" in written["changes"]
    assert "Our runs use other settings: engine=local, " in result.stdout
    assert (tmp_path / "fedbcgd" / "table2-lenet5.md").read_text() in result.stdout
    assert (tmp_path / "fedbcgd" / "table2-lenet5.tex").read_text() in result.stdout
    assert len(list((tmp_path / "runs").iterdir())) == 2
    (key,) = rows["FedAvg"]["runs"]
    summary = json.loads((tmp_path / "runs" / key / "summary.json").read_text())
    assert (summary["rounds"], summary["upload_d_total"]) == (3, 3), "the budget ends the run"
    assert rows["FedAvg"]["ours"]["accuracy"] == pytest.approx(100 * summary["last_tenth_accuracy"])

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a cached run must not run again")

    monkeypatch.setattr(paper_runs, "run", never)
    monkeypatch.setattr(paper_runs, "load", never)
    assert paper(*ONE, out=tmp_path).stdout == result.stdout[result.stdout.index("fedbcgd table2:") :]
    curves = paper("fedbcgd", "figure3", *ONE[2:], "--data", "cifar100", out=tmp_path)
    assert curves.exit_code == 0, "the curves of a figure are the runs of its table"


def test_an_unfinished_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper(*ONE, out=tmp_path / "whole")
    original, observed = paper_runs.run, []

    def interrupted(config: Config, **options: Any) -> Any:
        def count(record: Any) -> None:
            observed.append(record.round)
            if observed == [0, 1]:
                raise KeyboardInterrupt

        return original(config, observe=count, **options)

    monkeypatch.setattr(paper_runs, "run", interrupted)
    assert paper(*ONE, out=tmp_path / "parts").exit_code == 130
    assert paper(*ONE, out=tmp_path / "parts").exit_code == 0
    fedavg = observed[: observed.index(0, 1)]
    assert fedavg == [0, 1, 2], "round 0 must not run twice"
    tables = [(tmp_path / name / "fedbcgd" / "table2-lenet5.json").read_text() for name in ("whole", "parts")]
    assert tables[0] == tables[1]


def test_a_run_that_diverges_does_not_stop_the_others(tmp_path: Path) -> None:
    diverging = '{label = "FedAvg", algorithm = {name = "fedavg", lr = 1e30}}'
    changes = {"compare.variants": f'[{diverging}, {{algorithm = {{name = "fedbcgd"}}}}]'}
    result = paper("fedbcgd", "table2", "--model", "lenet5", out=tmp_path, **changes)
    assert result.exit_code == 0, result.output
    assert "failed: FedAvg: round 1 diverged" in result.stderr
    written = json.loads((tmp_path / "fedbcgd" / "table2-lenet5.json").read_text())
    assert [row["ours"] is None for row in written["rows"] if row["method"] in ("FedAvg", "FedBCGD")] == [True, False]
    assert len(written["failures"]) == 1


def test_seeds_give_means_and_deviations_and_fedprox_is_chosen_on_validation_data(tmp_path: Path) -> None:
    changes = {"compare.seeds": "[4, 7]", "rounds": 2, "cohort.clients_per_round": 20, "data.validation_share": 0.05}
    changes |= {"blocks.division": "layers", "model.options": "{ hidden = [16] }"}
    case = ("fedpvr", "table3", "--model", "resnet8", "--data", "cifar10", "--alpha", "0.5", "--methods", "fedprox")
    result = paper(*case, out=tmp_path, **changes)
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "fedpvr" / "table3-resnet8-cifar10-alpha0.5.json").read_text())
    (row,) = [row for row in written["rows"] if row["method"] == "FedProx"]
    found: dict[str, dict[float, dict[str, float]]] = {"validation": {}, "test": {}}
    for folder in (tmp_path / "runs").iterdir():
        config = load_config(folder / "config.toml")
        by_mu = found[config.data.evaluate_on].setdefault(config.algorithm.model_dump()["mu"], {})
        by_mu[folder.name] = 100 * json.loads((folder / "summary.json").read_text())["final_accuracy"]
    scores = {mu: sum(runs.values()) for mu, runs in sorted(found["validation"].items())}
    assert list(scores) == [0.1, 0.5, 1.0]
    ((mu, chosen),) = found["test"].items()  # the other two never saw the test data
    assert scores[mu] == max(scores.values())
    assert set(row["runs"]) == set(chosen)
    own = list(chosen.values())
    assert row["ours"]["accuracy"] == pytest.approx(sum(own) / 2)
    assert row["ours"]["deviation"] == pytest.approx(abs(own[0] - own[1]) / 2**0.5)


def test_a_choice_without_validation_data_is_refused(tmp_path: Path) -> None:
    case = ("fedpvr", "table3", "--model", "resnet8", "--data", "cifar10", "--alpha", "0.5", "--methods", "fedprox")
    result = paper(*case, out=tmp_path, **{"data.validation_share": 0.0})
    assert result.exit_code == 2
    assert "leaves no data to choose among FedProx, mu = 0.1, FedProx, mu = 0.5, FedProx, mu = 1.0" in result.stderr


def test_the_hash_ignores_where_a_run_runs_and_nothing_else() -> None:
    def changed(key: str, value: Any) -> str:
        return cache_key(make_config(assign(tables_of(base), {key: value})))

    base = small(data={"source": "cifar10"}, model={"name": "cnn", "options": {}})
    same = cache_key(base)
    for key, value in (
        ("engine", "ray"),
        ("hosts.count", 3),
        ("data.root", "x"),
        ("metrics.port", 9000),
        ("track.tensorboard", True),
    ):
        assert changed(key, value) == same, key
    for key, value in (
        ("seed", 1),
        ("rounds", 5),
        ("budget.upload_d", 3.0),
        ("algorithm.lr", 0.2),
        ("local.epochs", 2),
    ):
        assert changed(key, value) != same, key


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (Row(label="x", accuracy=41.2, deviation=0.2, upload_d=558), "41.2 ± 0.2 (558 d)"),
        (Row(label="x", accuracy=83.5, deviation=0.2, upload_d=5.8), "83.5 ± 0.2 (5.8 d)"),
        (Row(label="x", accuracy=88.0, upload_d=1985), "88.0 (1985 d)"),
        (Row(label="x", accuracy=53.9, deviation=0.4, upload_d=NEVER), "53.9 ± 0.4 (∞)"),
        (Row(label="x", rounds=NEVER), "never"),
        (Row(label="x", rounds=3210), "3210 rounds"),
        (Row(label="x", accuracy=56, highest=59), "56-59"),
        (Row(label="x"), "-"),
        (None, "-"),
    ],
)
def test_numbers_as_text(row: Row | None, text: str) -> None:
    assert numbers(row) == text


def test_ours_shows_what_the_paper_shows() -> None:
    ours = Row(label="x", accuracy=50.0, upload_d=12.3, rounds=40)
    assert numbers(ours, Row(label="x", accuracy=1.0)) == "50.0"
    assert numbers(ours, Row(label="x", rounds=1)) == "40 rounds"
    assert numbers(ours, Row(label="x")) == "50.0 (12.3 d) 40 rounds"


def test_tables_escape_what_latex_reserves() -> None:
    (experiment,) = select("fedbcgd", "figure5", data="cifar10")
    result = Comparison(experiment, 0.78, (), [Line(Row(label="freezing_share"), Row(label="", accuracy=1.0))])
    assert r"freezing\_share & - & 1.0 \\" in latex(result)
    assert r"78 \%" in latex(result)
    assert "| freezing_share | - | 1.0 |" in markdown(result)
