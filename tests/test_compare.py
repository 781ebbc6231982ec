"""Comparisons: variants, shared data and cohorts, the files, and the title of the plot."""

import io
import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

from raybcgd import Config, ConfigError, Run, run
from raybcgd.algorithms import FedAvg
from raybcgd.cli import app
from raybcgd.compare.comparison import compare
from raybcgd.compare.variants import one_variant, replaced_by_variants, variant_configs
from raybcgd.config import load_config, make_config
from raybcgd.config.files import assign, tables_of
from raybcgd.record.rounds import Quality, RoundRecord, Traffic
from raybcgd.record.summary import keeps, over_seeds, reaches, standing
from raybcgd.report.figures import accuracy
from raybcgd.report.plots import headline, upload_figure
from raybcgd.report.runs import methods_of, read_runs
from raybcgd.report.style import drawing, shown_d
from raybcgd.report.tables import comparison_table

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
    assert (out / "comparison.md").read_text().count("\n|") == 5
    assert {path.name for path in out.iterdir() if path.is_dir()} == {"fedavg", "fedavgm", "fedbcgd", "fedbcgd_plus"}


def test_the_target_of_a_comparison_is_that_of_its_runs() -> None:
    for target, tables in (
        (0.15, {"compare": {"target": 0.15}}),
        (0.4, {"metrics": {"target": 0.4}, "compare": {}}),
        (0.15, {"metrics": {"target": 0.4}, "compare": {"target": 0.15}}),
    ):
        assert {each.metrics.target for each in variant_configs(small(**tables)).values()} == {target}


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
    assert "\n FedBCGD " in result.stdout
    assert "FedAvgM" not in result.stdout


SUMMARY = {"algorithm": "x", "rounds": 3, "final_accuracy": 0.96, "best_accuracy": 0.96, "seconds": 12.5}
SUMMARY |= {"last_tenth_accuracy": 0.96, "upload_d_total": 0.6, "upload_floats": 1, "upload_bytes": 4}


@pytest.mark.parametrize("width", [60, 80])
def test_a_long_name_takes_several_lines_and_no_room_from_the_numbers(width: int) -> None:
    name = "FedBCGD, top-k with a hundredth of the values, and error feedback on every client"
    run = records(*[0.2] * 10, 0.96, 0.96)
    for record in run:
        record.traffic.__dict__.update(upload_floats=1, upload_bytes=4)
    console = Console(file=io.StringIO(), width=width)
    console.print(comparison_table([standing(name, "", run, SUMMARY, 0.9)], 0.9, width))
    _, table = console.file.getvalue().split("rounds to 90 % ")  # type: ignore[attr-defined]
    first = table.splitlines()[2]
    assert first.startswith(" FedBCGD, top-k ")
    assert first.split()[-3:] == ["96.0%", "2.0", "10"]
    assert all(word in table.split() for word in name.split())


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_loses_nothing_on_a_narrow_terminal(width: int) -> None:
    runs = {seed: records(0.2, 0.1, 0.9, 0.96) for seed in (0, 1, 2)}
    for record in chain(*runs.values()):
        record.traffic.__dict__.update(upload_floats=1, upload_bytes=4)
    rows = {seed: standing("FedBCGD+ (lr 0.1)", "", run, SUMMARY, 0.9) for seed, run in runs.items()}
    console = Console(file=io.StringIO(), width=width)
    console.print(comparison_table([over_seeds(rows)], 0.9, width))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    assert "FedBCGD+ (lr 0.1)" in text
    assert "96.0 ± 0.0 %" in text
    assert "rounds to 90 % " in text
    assert ("best" in text) == (width == 120)
    assert max(map(len, text.splitlines())) <= width


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


@pytest.mark.parametrize(
    ("algorithms", "says"),
    [
        ("fedavg", 'algorithms is \'fedavg\'; pass a list, such as ["fedavg", "fedbcgd"]'),
        (FedAvg, "algorithms is <class 'raybcgd.algorithms.fedavg.FedAvg'>; pass a list, such as ["),
        (FedAvg(lr=0.1), "algorithms is FedAvg(lr=0.1"),
        ([], 'algorithms is empty; pass a list, such as ["fedavg", "fedbcgd"], or leave it out'),
        (["fedbest"], 'algorithms "fedbest" is unknown; use a label of compare.variants (FedAvg,'),
    ],
)
def test_python_errors_about_the_methods_name_the_argument(algorithms: Any, says: str, out: Path) -> None:
    with pytest.raises(ConfigError) as error:
        compare(small(), algorithms, out=out, progress=False)
    assert str(error.value).startswith(says)
    assert not out.exists()


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


VARIANTS: list[dict[str, Any]] = [
    {"algorithm": {"name": "fedavg"}},
    {"algorithm": {"name": "scaffold", "lr": 0.07}, "wire": {"codec": "qsgd"}, "rounds": 2},
    {"partition": {"kind": "iid"}, "label": "iid"},
]


def test_a_comparison_of_a_run_is_that_of_its_config(tmp_path: Path) -> None:
    """A run writes all settings, and empty tables, into its config."""
    tables = {"rounds": 1, "engine": "local", "data": {"partition": {"clients": 20}}, "wire": {"codec": "topk"}}
    config = make_config({**tables, "compare": {"variants": VARIANTS}})
    run(config, out=tmp_path / "run", progress=False)
    written = load_config(tmp_path / "run/config.toml")
    opened = Run.open(tmp_path / "run").config()
    wanted = {label: one.to_toml() for label, one in variant_configs(config).items()}
    assert {label: one.to_toml() for label, one in variant_configs(written).items()} == wanted
    assert {label: one.to_toml() for label, one in variant_configs(opened).items()} == wanted
    assert written.to_toml() == config.to_toml()


def test_a_method_that_is_selected_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'^--algorithms selects "fedavg" twice; name it once$'):
        variant_configs(small(), ["fedavg", "FedAvg"], "--algorithms")


def test_a_setting_of_the_grid_that_variants_set_is_known() -> None:
    config = small(compare={"variants": VARIANTS})
    keys = ("algorithm.lr", "algorithm.momentum", "wire.codec", "data.partition.kind", "seed", "rounds")
    assert [replaced_by_variants(config, key) for key in keys] == [True, False, True, True, False, True]


def test_the_config_of_one_variant_has_no_variants() -> None:
    """The best config of a sweep over it would otherwise compare the old settings of the variant."""
    base = small(compare={"variants": VARIANTS, "target": 0.6})
    (config,) = one_variant(base, "scaffold", "--variant").values()
    assert config.compare is None
    assert config.metrics.target == 0.6
    best = make_config(assign(tables_of(config), {"algorithm.lr": 0.3}))
    (compared,) = variant_configs(best, ["scaffold"]).values()
    assert compared.algorithm.lr == 0.3


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


def test_small_uploads_are_not_shown_as_zero() -> None:
    shown = [shown_d(upload) for upload in (0, 0.00123, 0.0293, 0.1, 0.26, 12.34)]
    assert shown == ["0.0", "0.0012", "0.029", "0.1", "0.3", "12.3"]
    (record,) = reached = records(0.02, 0.95)
    record.traffic.__dict__.update(upload_floats=1, upload_bytes=4)
    line = standing("A", "", reached, {**SUMMARY, "upload_d_total": 0.02}, 0.9)
    console = Console(file=io.StringIO(), width=120)
    console.print(comparison_table([line], 0.9, 120))
    row = next(text for text in console.file.getvalue().splitlines() if "96.0%" in text)  # type: ignore[attr-defined]
    assert row.split().count("0.02") == 2, "the total, and up to the target"


def test_a_crossing_counts_as_kept_only_if_it_stays() -> None:
    kept = keeps(records(0.5, 0.9, 0.2, 0.9, None, 0.95), 0.9)
    assert kept is not None
    assert kept.round == 2
    assert keeps(records(0.5, 0.9, 0.95, 0.89), 0.9) is None
    assert keeps(records(0.5, None), 0.9) is None


THREE = [records(1, 0.1, 0.1, 0.1, 0.9), records(1, 0.1, 0.1, 0.1, 0.9), records(1, 0.1, 0.1, 0.9)]


@pytest.mark.parametrize(
    ("methods", "line"),
    [
        (
            {"FedAvg": THREE, "B": [records(0.5, 0.1, 0.9)] * 3},
            "B reaches 90 % accuracy with 3.7 ± 0.6 times less upload than FedAvg (3 seeds)",
        ),
        # The reference is FedAvg, as in the table of a report, also if it is neither the first nor the most expensive:
        (
            {"C": [records(4, 0.1, 0.9)] * 3, "FedAvg (a/b)": THREE, "B": [records(0.5, 0.1, 0.9)] * 3},
            "B reaches 90 % accuracy with 3.7 ± 0.6 times less upload than FedAvg (a/b) (3 seeds)",
        ),
        # One or two seeds, a crossing that does not stay, a gain within the noise, a method that never arrives:
        ({"FedAvg": THREE[:2], "B": [records(0.5, 0.1, 0.9)] * 2}, "Accuracy and upload of FedAvg and B"),
        ({"FedAvg": THREE, "B": [records(0.5, 0.9, 0.8)] * 3}, "Accuracy and upload of FedAvg and B"),
        ({"FedAvg": THREE, "B": [*THREE[1:], THREE[0]]}, "Accuracy and upload of FedAvg and B"),
        # A late dip of FedAvg does not make the other one better:
        (
            {"FedAvg": [records(1, 0.1, 0.9, 0.1, 0.9)] * 3, "B": [records(0.5, 0.1, 0.9)] * 3},
            "B reaches 90 % accuracy with 2.0 ± 0.0 times less upload than FedAvg (3 seeds)",
        ),
        # Like the table: up to the first round with the target, and the ratio of the means (11 / 4).
        (
            {"FedAvg": THREE, "B": [*[records(1, 0.9, 0.1, 0.9)] * 2, records(1, 0.1, 0.9)]},
            "B reaches 90 % accuracy with 2.8 ± 1.4 times less upload than FedAvg (3 seeds)",
        ),
        ({"A": [records(1, 0.9)] * 3, "B": [records(1, 0.1)] * 3}, "Accuracy and upload of A and B"),
        ({"A": [records(1, 0.1, 0.25)]}, "A: 25.0% after 2 rounds"),
        ({name: [records(1, 0.9)] for name in "ABCDE"}, "Accuracy and upload of 5 methods"),
    ],
)
def test_a_title_claims_only_gains_that_stay_over_several_seeds(methods: Any, line: str) -> None:
    assert headline(methods, 0.9) == line


def test_seeds_on_the_command_line_give_error_bands(out: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(small(compare={"target": 0.15}).to_toml())
    arguments = ["compare", str(path), "--algorithms", "fedavg,fedbcgd", "--seeds", "0,1,2", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    runs = read_runs([out])
    assert [(run.method, run.config.seed) for run in runs] == [(m, s) for m in ("FedAvg", "FedBCGD") for s in range(3)]
    with drawing() as new:
        figure = upload_figure(new, {m.label: [run.records for run in m.runs] for m in methods_of(runs)}, 0.15, "x")
        page = accuracy(new, methods_of(runs), 0.15)
    for axes in (*figure.axes, *page.axes):
        bands = {to_hex(band.get_facecolor()[0]) for band in axes.collections}
        lines = {to_hex(line.get_color()) for line in axes.lines if not line.get_label().startswith("_")}
        assert len(bands) == 2
        assert bands <= lines
    wrong = CliRunner().invoke(app, [*arguments[:4], "--seeds", "1,1"])
    assert (wrong.exit_code, "compare.seeds" in wrong.stderr) == (2, True)


def test_seeds_on_the_command_line_are_the_integers_that_seed_allows(out: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(small(rounds=1).to_toml())
    command = ["compare", str(path), "--algorithms", "fedavg", "--out", str(out)]
    result = CliRunner().invoke(app, [*command, "--seeds", "-1, 1"])
    assert result.exit_code == 0, result.output
    assert [(run.label, run.config.seed) for run in read_runs([out])] == [
        ("FedAvg, seed -1", -1),
        ("FedAvg, seed 1", 1),
    ]


_LR_SET = [{"label": "a", "algorithm": {"name": "fedavg", "lr": 0.1}}, {"label": "b", "algorithm": {"lr": 0.2}}]


@pytest.mark.parametrize(
    ("variants", "arguments", "says"),
    [
        (_LR_SET, ["--set", "algorithm.lr=0.9"], "algorithm.lr=0.9 has no effect: every variant sets lr; set it in"),
        (_LR_SET, ["--set", "algorithm={lr = 0.9}"], "algorithm={lr = 0.9} has no effect: every variant sets lr; set"),
        (
            [{"algorithm": {"name": "tests.test_compare_failures:Halved", "lr": 0.1}}, {"label": "plain"}],
            ["--set", "algorithm.lr=0.9", "--algorithms", "tests.test_compare_failures:Halved"],
            "algorithm.lr=0.9 has no effect: every variant sets lr; set it in compare.variants, or remove it from them",
        ),
        ([{"rounds": 1}], ["--set", "rounds=2"], "rounds=2 has no effect: every variant sets rounds; set it in"),
        ([{"wire": {"codec": "bf16"}}], ["--set", "wire.codec=qsgd"], "wire.codec=qsgd has no effect: every variant"),
        (
            [{"cohort": {"clients_per_round": 4}}],
            ["--set", "cohort.clients_per_block=1"],
            "cohort.clients_per_block=1 has no effect: every variant sets clients_per_block or clients_per_round; set",
        ),
        (
            _LR_SET[:1],
            ["--set", "algorithm.momentum=0.9"],
            "algorithm.momentum=0.9 has no effect: the methods that run have no momentum; remove it",
        ),
        (_LR_SET, ["--set", "seed=3", "--seeds", "1,2"], "seed=3 has no effect: compare.seeds replaces it; set that"),
    ],
)
def test_a_setting_that_every_variant_replaces_is_refused(
    variants: list[Any], arguments: list[str], says: str, out: Path, tmp_path: Path
) -> None:
    path = tmp_path / "small.toml"
    path.write_text(small(rounds=1, compare={"variants": variants}).to_toml())
    result = CliRunner().invoke(app, ["compare", str(path), "--out", str(out), *arguments])
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith(f"error: --set {says}")
    assert not out.exists()
    if variants is _LR_SET and "--seeds" not in arguments:
        sweep = ["sweep", str(path), "--grid", "algorithm.lr_decay=0.9,1", "--variant", "a", *arguments]
        assert CliRunner().invoke(app, sweep).stderr.startswith(f"error: --set {says}")


def test_a_setting_that_some_variants_replace_is_noted(
    out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    variants = [*_LR_SET, {"label": "c", "algorithm": {"name": "fedavg"}}]
    path = tmp_path / "small.toml"
    path.write_text(small(rounds=1, compare={"variants": variants}).to_toml())
    command = ["compare", str(path), "--out", str(out)]
    given = ["algorithm.lr=0.9", "algorithm.momentum=0.2", "engine=local", "rounds=1"]
    result = CliRunner().invoke(app, [*command, *(part for text in given for part in ("--set", text))])
    assert result.exit_code == 0, result.output
    assert [record.message for record in caplog.records if "has no effect" in record.message] == [
        "note: --set algorithm.lr=0.9 has no effect on a, b, where compare.variants sets lr",
        "note: --set algorithm.momentum=0.2 has no effect on a, c, where there is no momentum",
    ]
