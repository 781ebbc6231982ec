"""Comparisons that survive: names that collide, runs that fail, and Ctrl-C."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from raybcgd import Config, ConfigError, RunError, run
from raybcgd.algorithms import FedAvg
from raybcgd.cli import app
from raybcgd.compare.comparison import compare, variant_configs
from raybcgd.config import load_config
from raybcgd.record.rounds import RoundRecord
from raybcgd.report.runs import read_runs
from raybcgd.report.watch import LivePage
from tests.test_compare import small


class Halved(FedAvg):
    def server_rule(self, server: Any, total: Any, rnd: Any) -> Any:
        return server._replace(x=server.x + 0.5 * total.delta)


class Renamed(FedAvg):
    """FedAvg: a copy with the same title."""


def test_subclasses_do_not_collide_with_their_base_class(out: Path) -> None:
    assert list(variant_configs(small(), ["fedavg", f"{__name__}:Halved"])) == ["FedAvg", "Halved"]
    assert list(variant_configs(small(), [FedAvg, Renamed])) == ["FedAvg, FedAvg", "FedAvg, Renamed"]
    result = compare(small(rounds=1), algorithms=["fedavg", Halved, FedAvg(lr=0.5)], out=out)
    assert list(result.runs) == ["FedAvg, lr = 0.05", "Halved", "FedAvg, lr = 0.5"]
    assert [line.algorithm for line in result.standings] == ["fedavg", "Halved", "fedavg"]
    with pytest.raises(ConfigError, match="is not a subclass of Algorithm"):
        variant_configs(small(), [nn.Linear])
    variants = [{"label": label, "algorithm": {"name": "fedavg"}} for label in ("a b", "A-b")]
    with pytest.raises(ConfigError, match="folders would have the same name"):
        variant_configs(small(compare={"variants": variants}))


def test_a_diverging_run_does_not_stop_the_others(tmp_path: Path) -> None:
    variants = [
        {"label": "bad", "algorithm": {"name": "fedavg", "lr": 1e300}},
        {"label": "good", "algorithm": {"name": "fedavg", "lr": 0.05}},
    ]
    path, out = tmp_path / "small.toml", tmp_path / "run"
    path.write_text(small(compare={"variants": variants}).to_toml())
    result = CliRunner().invoke(app, ["compare", str(path), "--out", str(out)])
    assert result.exit_code == 1, result.output
    assert "\nbad failed: client " in result.stdout
    assert result.stdout.endswith(f"plot and tables: {out}/comparison.png, .md, .json\n")
    repeat = f"repeat the command with --out {out} --resume auto to run only these"
    assert result.stderr.splitlines()[-1] == f"error: 1 of 2 runs failed (bad); {repeat}"
    recorded = json.loads((out / "comparison.json").read_text())["runs"]
    assert [row["algorithm"] for row in recorded] == ["fedavg", "fedavg"]
    table = (out / "comparison.md").read_text()
    (row,) = (line for line in table.splitlines() if line.startswith("| bad |"))
    assert row.split(" | ")[1:-1] == ["failed", *["-"] * 11]
    assert "\n\nbad failed: client " in table
    assert [run.label for run in read_runs([out])] == ["good"]
    assert CliRunner().invoke(app, ["report", str(out)]).exit_code == 0
    page = (out / "report.html").read_text()
    assert "rounds; 1 failed</h1>" in page
    assert "<td>bad</td><td>failed</td>" in page
    assert "<td>bad</td><td>client " in page.split('<section id="errors">')[1]
    settings = page.split('<section id="settings">')[1].split("</section>")[0]
    assert "lr = 1e+300" in settings.split("<td>bad</td>")[1].split("</tr>")[0]
    path.write_text(small(compare={"variants": variants[:1]}).to_toml())
    result = CliRunner().invoke(app, ["compare", str(path), "--out", str(tmp_path / "none")])
    assert (result.exit_code, result.stderr.split(":")[1]) == (1, " no run of the comparison finished")


class Mem(FedAvg):
    """Mem (nobody, never): a method whose name is not its title."""

    name = "mem"


def test_own_methods_are_named_by_their_label_or_their_name() -> None:
    variants = [{"algorithm": {"name": f"{__name__}:Mem"}}, {"label": "other", "algorithm": {"name": "fedavg"}}]
    config = small(compare={"variants": variants})
    for name in ("Mem", "mem", f"{__name__}:Mem", Mem):
        assert list(variant_configs(config, [name])) == ["Mem"]
    for name, says in (
        ("MEM", 'algorithms "MEM" is unknown; did you mean Mem?'),
        ("FedAvgm", 'algorithms "FedAvgm" is unknown; did you mean fedavgm?'),
        ("x", 'algorithms "x" is unknown; use a label of compare.variants (Mem, other), one of fedavg, fedavgm,'),
        ("mine:None", 'algorithms mine:None: algorithm.name = "mine:None" cannot be imported (ModuleNotFoundError:'),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(says)}"):
            variant_configs(config, [name])
    own = small(algorithm={"name": f"{__name__}:Mem", "lr": 0.1}, compare={"variants": [{"label": "a"}, variants[1]]})
    assert list(variant_configs(own, ["mem"])) == ["a"], "a variant without a method uses that of the config"
    without = small(algorithm={"name": f"{__name__}:Mem", "lr": 0.3})
    assert [(label, one.algorithm.lr) for label, one in variant_configs(without, ["mem"]).items()] == [("Mem", 0.3)]


def test_a_run_that_diverged_starts_again_with_other_settings_and_the_others_are_kept(tmp_path: Path) -> None:
    """With one step per round, the run with the step size 1e9 diverges in its second round, after a checkpoint."""

    def compared(lr: float, *arguments: str) -> Any:
        variants = [{"label": "bad", "algorithm": {"lr": lr}}, {"label": "good", "algorithm": {"lr": 0.05}}]
        tables = {"algorithm": {"name": "fedavg"}, "checkpoint": {"every": 1}, "compare": {"variants": variants}}
        path.write_text(small(**tables, local={"epochs": 1, "batch_size": "full"}).to_toml())
        return CliRunner().invoke(app, ["compare", str(path), "--out", str(out), *arguments])

    path, out = tmp_path / "small.toml", tmp_path / "run"
    repeat = f"repeat the command with --out {out} --resume auto, which keeps the finished runs"
    advice = f"change the settings of bad, such as lr, because a repeat would diverge again; then {repeat}"
    for arguments in ((), ("--resume", "auto")):
        result = compared(1e9, *arguments)
        assert (out / "bad/checkpoints/round-000001").is_dir()
        assert result.stderr.splitlines()[-1] == f"error: 1 of 2 runs failed (bad); {advice}"
    finished = (out / "good/summary.json").stat().st_mtime_ns
    result = compared(0.1, "--resume", "auto")
    assert result.exit_code == 0, result.output
    assert "good: already finished after 3 rounds" in result.stdout
    assert (out / "good/summary.json").stat().st_mtime_ns == finished
    assert [load_config(out / name / "config.toml").algorithm.lr for name in ("bad", "good")] == [0.1, 0.05]
    assert compared(0.2, "--resume", "auto").exit_code == 2, "a finished run is not replaced"


def test_a_report_names_a_failure_while_the_comparison_runs(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = [{"label": label, "algorithm": {"name": "fedavg", "lr": lr}} for label, lr in (("a", 0.1), ("b", 1e300))]
    config, started = small(compare={"variants": [*variants, {**variants[0], "label": "c"}]}), list[str]()

    def interrupted(config: Config, **options: Any) -> Any:
        started.append(options["label"])
        if options["label"] == "c":
            raise KeyboardInterrupt
        return run(config, **options)

    monkeypatch.setattr("raybcgd.compare.comparison.run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(config, out=out, progress=False)
    page = LivePage([out]).html().decode()
    assert started == ["a", "b", "c"]
    assert "1 of 3 runs have finished." in page
    assert "<td>b</td><td>failed</td>" in page
    assert "<td>b</td><td>client " in page.split('<section id="errors">')[1]
    monkeypatch.undo()
    assert list(compare(config, out=out, progress=False, resume=True).failures) == ["b"]


def test_one_diverging_seed_is_left_out_of_the_means(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_for_seed_5(config: Config, **options: Any) -> Any:
        if config.seed == 5:
            raise RunError("round 0 diverged")
        return run(config, **options)

    monkeypatch.setattr("raybcgd.compare.comparison.run", broken_for_seed_5)
    variants = [{"algorithm": {"name": "fedavg"}}]
    result = compare(small(rounds=1, compare={"variants": variants, "seeds": [3, 5, 7]}), out=out)
    (line,) = result.standings
    tails = [done.summary["last_tenth_accuracy"] for done in result.runs.values()]
    assert (len(tails), line.last_tenth_accuracy) == (2, pytest.approx(sum(tails) / 2))
    assert result.failures == {"FedAvg, seed 5": "round 0 diverged"}
    table = (out / "comparison.md").read_text()
    assert "| FedAvg (1 of 3 seeds failed) |" in table
    assert "\n\nFedAvg (1 of 3 seeds) failed: round 0 diverged\n" in table
    assert [run.label for run in read_runs([out])] == list(result.runs)


def test_a_report_lists_the_settings_of_a_run_that_has_no_folder(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_prox(config: Config, **options: Any) -> Any:
        if config.algorithm.name == "fedprox":
            raise RunError("no host is up")
        return run(config, **options)

    monkeypatch.setattr("raybcgd.compare.comparison.run", broken_prox)
    compare(small(rounds=1), algorithms=["fedavg", "fedprox"], out=out)
    assert CliRunner().invoke(app, ["report", str(out)]).exit_code == 0
    settings = (out / "report.html").read_text().split('<section id="settings">')[1].split("</section>")[0]
    assert "<td>FedProx</td><td>name = fedprox, lr = 0.05, " in settings
    assert "local.batch_size = 20" in settings.split("<p>All runs:")[1]


def test_a_report_leaves_a_run_that_fails_late_out_of_the_means(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_later(config: Config, **options: Any) -> Any:
        def stop(record: RoundRecord) -> None:
            if config.seed == 5 and record.round == 1:
                raise RunError("round 2 diverged")

        return run(config, observe=stop, **options)

    monkeypatch.setattr("raybcgd.compare.comparison.run", broken_later)
    compare(small(compare={"variants": [{"algorithm": {"name": "fedavg"}}], "seeds": [3, 5]}), out=out)
    assert CliRunner().invoke(app, ["report", str(out)]).exit_code == 0
    page = (out / "report.html").read_text()
    assert "<td>FedAvg (1 of 2 seeds failed)</td><td>3</td>" in page
    assert "<td>FedAvg, seed 5</td><td>round 2 diverged</td>" in page
    assert CliRunner().invoke(app, ["report", str(out / "fedavg-seed-5")]).exit_code == 0
    assert "round 2 diverged" in (out / "fedavg-seed-5/report.html").read_text()


def test_an_interrupted_comparison_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "small.toml", tmp_path / "run"
    path.write_text(small(rounds=2, checkpoint={"every": 1}).to_toml())
    arguments = ["compare", str(path), "--algorithms", "fedavg,fedbcgd", "--out", str(out)]
    whole = compare(load_config(path), algorithms=["fedavg", "fedbcgd"], out=tmp_path / "whole")
    started: list[bool] = []

    def interrupted(config: Config, resume: bool, **options: Any) -> Any:
        def stop(record: RoundRecord) -> None:
            if len(started) == 2:
                raise KeyboardInterrupt

        started.append(resume)
        return run(config, observe=stop, resume=resume, **options)

    monkeypatch.setattr("raybcgd.compare.comparison.run", interrupted)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 130
    assert result.stderr.startswith("interrupted after 1 finished run; repeat the command with --out ")
    capsys.readouterr()
    again = compare(load_config(path), algorithms=["fedavg", "fedbcgd"], out=out, resume=True)
    shown = capsys.readouterr().err
    assert "[1/2] FedAvg: already finished after 2 rounds\n" in shown
    assert "[1/2] FedAvg: training" not in shown
    assert "[2/2] FedBCGD: round 2/2" in shown
    assert started == [False, False, True, True]
    for label, expected in whole.runs.items():
        assert again.runs[label].summary["sha256"] == expected.summary["sha256"]
        states = zip(again.runs[label].model.state_dict().values(), expected.model.state_dict().values(), strict=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in states)
    assert CliRunner().invoke(app, arguments).exit_code == 2  # without --resume, the folder is refused


@pytest.mark.parametrize(
    ("first", "second", "has"),
    [
        (["--seeds", "3,5"], ["--seeds", "3"], "FedAvg, FedBCGD with seeds 3, 5"),
        (["--seeds", "3,5"], ["--seeds", "5,7"], "FedAvg, FedBCGD with seeds 3, 5"),
        (["--seeds", "3,5"], ["--seeds", "3,5", "--algorithms", "fedavg"], "FedAvg, FedBCGD with seeds 3, 5"),
        ([], ["--algorithms", "fedavg"], "FedAvg, FedBCGD with one seed"),
        ([], ["--seeds", "0,1"], "FedAvg, FedBCGD with one seed"),
    ],
)
def test_a_comparison_is_not_replaced_by_a_part_of_it(
    first: list[str], second: list[str], has: str, tmp_path: Path
) -> None:
    path, out = tmp_path / "small.toml", tmp_path / "run"
    variants = [{"algorithm": {"name": name}} for name in ("fedavg", "fedbcgd")]
    path.write_text(small(rounds=1, compare={"variants": variants}).to_toml())
    command = ["compare", str(path), "--out", str(out)]
    assert CliRunner().invoke(app, [*command, *first]).exit_code == 0
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    result = CliRunner().invoke(app, [*command, "--resume", "auto", *second])
    assert result.exit_code == 2, result.output
    more_seeds = "one seed" in has and "--seeds" in second
    problem = (
        "which cannot be extended to several seeds; choose another --out"
        if more_seeds
        else "which this one would replace; include the same methods and seeds, or choose another --out"
    )
    assert result.stderr.splitlines()[-1] == f"error: {out} has a comparison of {has}, {problem}"
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


def test_a_comparison_can_get_more_seeds_and_an_error_names_the_run(out: Path) -> None:
    variants = [{"algorithm": {"name": "fedavg"}}]
    compare(small(compare={"variants": variants, "seeds": [3, 5]}), out=out)
    more = compare(small(compare={"variants": variants, "seeds": [3, 5, 7]}), out=out, resume=True)
    assert more.standings[0].seeds == (3, 5, 7)
    with pytest.raises(ConfigError, match=r"^FedAvg, seed 3: rounds = 2, but 3 rounds are done; raise rounds"):
        compare(small(rounds=2, compare={"variants": variants, "seeds": [3, 5, 7]}), out=out, resume=True)


def test_a_report_groups_the_runs_of_an_interrupted_comparison(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(config: Config, **options: Any) -> Any:
        def stop(record: RoundRecord) -> None:
            if options["label"] == "Averaging, seed 5" and record.round == 1:
                raise KeyboardInterrupt

        return run(config, observe=stop, **options)

    variants = [{"label": "Momentum", "algorithm": {"name": "fedavgm"}}]
    variants += [{"label": "Averaging", "algorithm": {"name": "fedavg"}}]
    config = small(checkpoint={"every": 1}, compare={"variants": variants, "seeds": [3, 5, 7], "target": 0.01})
    monkeypatch.setattr("raybcgd.compare.comparison.run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(config, out=out)
    assert [run.label for run in read_runs([out])] == [
        *(f"Momentum, seed {seed}" for seed in (3, 5, 7)),
        *(f"Averaging, seed {seed}" for seed in (3, 5)),
    ]
    assert CliRunner().invoke(app, ["report", str(out)]).exit_code == 0
    page = (out / "report.html").read_text()
    assert "<strong>4 of 6 runs have finished.</strong>" in page
    assert "<h1>Accuracy and upload of Momentum and Averaging</h1>" in page
    assert "<th>upload reduction vs. Momentum</th>" in page
    assert "<strong>Stopped before the end: Averaging, seed 5, round 2 of 3.</strong>" in page
    assert "<td>Averaging</td><td>3</td>" in page, "the mean leaves out the seed that stopped"
    monkeypatch.setattr("raybcgd.compare.comparison.run", run)
    whole = compare(config, out=out, resume=True)
    assert [run.label for run in read_runs([out])] == list(whole.runs)
    assert CliRunner().invoke(app, ["report", str(out)]).exit_code == 0
    assert "have finished" not in (out / "report.html").read_text()
