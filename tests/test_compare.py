"""Comparisons: variants, shared data and cohorts, the files, and the title of the plot."""

import json
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
from raybcgd.config import load_config, make_config
from raybcgd.record.rounds import Quality, RoundRecord, Traffic
from raybcgd.record.summary import reaches
from raybcgd.report.plots import headline
from raybcgd.report.runs import read_runs

DEMO = Path(__file__).parent.parent / "jobs" / "configs" / "demo.toml"


def small(**tables: Any) -> Config:
    base: dict[str, Any] = {
        "rounds": 3,
        "engine": "local",
        "data": {"partition": {"rho": 0.3, "clients": 20}},
        "model": {"options": {"hidden": [16, 16, 16]}},
        "blocks": {"count": 3},
        "algorithm": {"lr": 0.05, "momentum": 0.5},
        "local": {"epochs": 1, "batch_size": 20},
    }
    return make_config({**base, **tables})


def test_runs_share_data_and_cohorts_and_write_their_files(out: Path) -> None:
    result = compare(small(compare={"target": 0.15}), out=out)
    assert list(result.runs) == ["FedAvg", "FedAvgM", "FedBCGD", "FedBCGD+"]
    cohorts = {tuple(p.client for r in run.records for p in r.participants) for run in result.runs.values()}
    assert len(cohorts) == 1
    table = json.loads((out / "comparison.json").read_text())
    assert [line["label"] for line in table["runs"]] == list(result.runs)
    by_label = {line.label: line for line in result.standings}
    assert by_label["FedAvg"].upload_d_per_round == 1.0
    assert by_label["FedBCGD"].upload_d_per_round == pytest.approx(by_label["FedBCGD+"].upload_d_per_round)
    assert by_label["FedBCGD"].upload_d_per_round < 0.5
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "comparison.md").read_text().count("\n") == 6
    assert {path.name for path in out.iterdir() if path.is_dir()} == {"fedavg", "fedavgm", "fedbcgd", "fedbcgd_plus"}


def test_variants_may_change_the_partition_and_the_data_phases() -> None:
    variants = [
        {"label": "skewed", "partition": {"rho": 0.1}},
        {"label": "iid", "partition": {"kind": "iid"}},
        {"label": "cyclic", "phases": {"count": 2}},
        {"label": "shuffled", "phases": {"shuffled": True}},
    ]
    configs = variant_configs(small(compare={"variants": variants}))
    skewed, iid, cyclic, shuffled = (config.data for config in configs.values())
    assert (skewed.partition.clients, skewed.partition.rho) == (20, 0.1)
    assert (iid.partition.clients, type(iid.partition).__name__) == (20, "IID")
    assert skewed.phases is None
    assert cyclic.phases is not None
    assert (cyclic.phases.count, cyclic.phases.shuffled) == (2, False)
    assert shuffled.phases is not None
    assert shuffled.phases.shuffled
    with pytest.raises(ConfigError, match=r'"x": data\.partition\.rho = -1'):
        variant_configs(small(compare={"variants": [{"label": "x", "partition": {"rho": -1}}]}))


def test_several_seeds_give_one_row_per_method_with_the_deviation(out: Path) -> None:
    variants = [{"algorithm": {"name": name}} for name in ("fedavg", "fedbcgd")]
    result = compare(small(compare={"target": 0.99, "variants": variants, "seeds": [3, 5]}), out=out)
    assert list(result.runs) == ["FedAvg, seed 3", "FedAvg, seed 5", "FedBCGD, seed 3", "FedBCGD, seed 5"]
    tails = [result.runs[f"FedAvg, seed {seed}"].summary["last_tenth_accuracy"] for seed in (3, 5)]
    assert tails[0] != tails[1]
    first, _ = result.standings
    assert first.seeds == (3, 5)
    assert first.last_tenth_accuracy == pytest.approx(sum(tails) / 2)
    assert first.last_tenth_deviation == pytest.approx(abs(tails[0] - tails[1]) / 2**0.5)
    assert first.upload_d_to_target is None
    shown = f"{50 * sum(tails):.1f} ± {100 * abs(tails[0] - tails[1]) / 2**0.5:.1f} %"
    assert f"| FedAvg | {shown} |" in (out / "comparison.md").read_text()
    assert [run.label for run in read_runs([out])] == list(result.runs)
    with pytest.raises(ConfigError, match=r"compare\.seeds"):
        small(compare={"seeds": [1, 1]})


def test_the_command_prints_a_table(out: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(small().to_toml())
    arguments = ["compare", str(path), "--algorithms", "fedavg,fedbcgd", "--set", "rounds=1", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "d total" in result.stdout
    assert "│ FedBCGD " in result.stdout
    assert "FedAvgM" not in result.stdout


def test_the_variants_of_the_demo_differ_only_in_the_algorithm() -> None:
    plan = variant_configs(load_config(DEMO))
    assert list(plan) == ["FedAvg", "FedAvgM", "FedBCGD", "FedBCGD+"]
    others = [config.model_dump(exclude={"algorithm"}) for config in plan.values()]
    assert all(other == others[0] for other in others)


def test_algorithms_selects_variants_by_label_or_method() -> None:
    config = small(
        compare={
            "variants": [
                {"label": "slow", "algorithm": {"name": "fedavg", "lr": 0.01}},
                {"label": "fast", "algorithm": {"name": "fedavg", "lr": 0.1}},
            ]
        }
    )
    assert list(variant_configs(config)) == ["slow", "fast"]
    assert list(variant_configs(config, ["fast"])) == ["fast"]
    assert list(variant_configs(config, ["fedavg"])) == ["slow", "fast"]
    other = variant_configs(config, ["fedbcgd"])
    assert other["FedBCGD"].algorithm.lr == 0.05
    assert list(variant_configs(small(), ["FedBCGD+", "fedavg"])) == ["FedBCGD+", "FedAvg"]


def test_sweep_refuses_an_ambiguous_variant(tmp_path: Path) -> None:
    variants = [{"label": label, "algorithm": {"name": "fedavg"}} for label in ("a", "b")]
    path = tmp_path / "small.toml"
    path.write_text(small(compare={"variants": variants}).to_toml())
    result = CliRunner().invoke(app, ["sweep", str(path), "--grid", "algorithm.lr=1,2", "--variant", "fedavg"])
    assert (result.exit_code, result.stderr) == (2, "error: --variant fedavg matches 2 variants; use one of a, b\n")


def test_a_variant_keeps_python_objects() -> None:
    class Local(FedAvg):
        """Local (nobody, never): a class that cannot be imported by its name."""

        name = "local"

    def linear(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], classes))

    config = small(algorithm=Local(lr=0.2), model={"name": linear}, compare={"variants": [{"algorithm": {"lr": 0.3}}]})
    (variant,) = variant_configs(config).values()
    assert variant.algorithm == Local(lr=0.3)
    assert variant.model.name is linear


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ([{"algorithm": {"name": "fedavg"}}, {"algorithm": {"name": "fedavg"}}], '"FedAvg" twice'),
        ([{"label": "x", "algorithm": {"name": "fedavg", "lr": -1}}], '"x": algorithm.lr = -1'),
        ([{"label": "x", "algorithm": {"name": "fed"}}], '"x": algorithm.name = "fed" is unknown'),
        ([], "compare.variants is empty"),
    ],
)
def test_an_invalid_variant_is_named(variants: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        variant_configs(small(compare={"variants": variants}))


def test_all_variants_are_checked_before_the_first_one_runs(out: Path) -> None:
    variants = [{"algorithm": {"name": "fedavg"}}, {"algorithm": {"name": "fedbcgd"}, "blocks": {"count": 9}}]
    with pytest.raises(ConfigError, match=r'compare.variants, "FedBCGD": blocks.count = 9'):
        compare(small(compare={"variants": variants}), out=out)
    assert not out.exists()


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(ConfigError, match="choose another --out"):
        compare(small(), out=tmp_path)


def records(upload_d: float, *accuracies: float | None) -> tuple[RoundRecord, ...]:
    return tuple(
        RoundRecord.model_construct(
            round=k,
            quality=Quality.model_construct(accuracy=accuracy),
            traffic=Traffic.model_construct(upload_d_total=upload_d * (k + 1)),
        )
        for k, accuracy in enumerate(accuracies)
    )


def test_the_upload_to_the_target_ends_with_the_first_round_that_reaches_it() -> None:
    reached = reaches(records(0.5, 0.2, None, 0.9, 0.8, 0.95), 0.9)
    assert reached is not None
    assert (reached.round, reached.traffic.upload_d_total) == (2, 1.5)
    assert reaches(records(0.5, 0.2, None), 0.9) is None


@pytest.mark.parametrize(
    ("runs", "line"),
    [
        (
            {"FedAvg": records(1, 0.1, 0.9), "B": records(0.25, 0.1, 0.9)},
            "B reaches 90 % with 4.0 times less upload than FedAvg",
        ),
        (
            {"FedAvg": records(1, 0.9), "B": records(1, 0.1, 0.9)},
            "FedAvg reaches 90 % with 2.0 times less upload than B",
        ),
        ({"A": records(1, 0.9), "B": records(1, 0.1)}, "A reaches 90 % with 1.0 d uploaded; no other run does"),
        ({"A": records(1, 0.1), "B": records(1, 0.1)}, "No run reaches 90 %"),
    ],
)
def test_the_title_of_the_plot_states_the_result(runs: dict[str, tuple[RoundRecord, ...]], line: str) -> None:
    assert headline(runs, 0.9) == line


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
    assert result.exit_code == 0, result.output
    assert "\nbad failed: client " in result.stdout
    assert "| bad | failed |" in (out / "comparison.md").read_text()
    assert [run.label for run in read_runs([out])] == ["good"]
    path.write_text(small(compare={"variants": variants[:1]}).to_toml())
    result = CliRunner().invoke(app, ["compare", str(path), "--out", str(tmp_path / "none")])
    assert (result.exit_code, result.stderr.split(":")[1]) == (1, " no run of the comparison finished")


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
    assert "| FedAvg (1 of 3 seeds failed) |" in (out / "comparison.md").read_text()
    assert [run.label for run in read_runs([out])] == list(result.runs)


def test_an_interrupted_comparison_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert result.stderr.startswith("interrupted after 1 finished runs; repeat the command with --out ")
    again = compare(load_config(path), algorithms=["fedavg", "fedbcgd"], out=out, resume=True)
    assert started == [False, False, True]  # the finished run is read, the other one resumes
    for label, expected in whole.runs.items():
        assert again.runs[label].summary["sha256"] == expected.summary["sha256"]
        states = zip(again.runs[label].model.state_dict().values(), expected.model.state_dict().values(), strict=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in states)
    assert CliRunner().invoke(app, arguments).exit_code == 2  # without --resume, the folder is refused
