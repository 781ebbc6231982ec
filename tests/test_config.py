"""Configs: files, overrides, variants, and one-line errors."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raybcgd import Config, ConfigError, run
from raybcgd.algorithms import FedAvg
from raybcgd.compare.settings import Variant
from raybcgd.config import load_config, make_config
from raybcgd.config.files import override, tables_of, vary
from raybcgd.data.partition import IID
from raybcgd.wire import TopK

CONFIGS = sorted((Path(__file__).parent.parent / "jobs" / "configs").glob("*.toml"))
EXAMPLE = next(path for path in CONFIGS if path.name == "quickstart.toml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_survives_a_round_trip_through_toml(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    copy = tmp_path / "copy.toml"
    copy.write_text(config.to_toml())
    assert load_config(copy) == config
    assert load_config(copy).to_toml() == config.to_toml()


def test_the_quickstart_runs(out: Path) -> None:
    config = load_config(EXAMPLE, ["rounds=2", "engine=local"])
    assert (config.algorithm.name, config.algorithm.lr, config.blocks.count) == ("fedbcgd+", 0.03, 5)
    result = run(config, out=out)
    assert [record.round for record in result.records] == [0, 1]
    assert {path.name for path in out.iterdir()} >= {"config.toml", "rounds.jsonl", "final.safetensors", "summary.json"}
    assert load_config(out / "config.toml") == config


def test_an_empty_config_is_valid() -> None:
    assert make_config({}) == Config()


def test_overrides_are_toml_values_or_bare_words() -> None:
    values = override({"a": {"b": 1}}, ["a.b=2.5", "a.c=word", "d=[1, 2]", "e.f.g=true", 'h="x y"', "i = 3 "])
    assert values == {"a": {"b": 2.5, "c": "word"}, "d": [1, 2], "e": {"f": {"g": True}}, "h": "x y", "i": 3}


def test_overrides_do_not_change_their_input() -> None:
    values = {"a": {"b": 1}}
    override(values, ["a.b=2"])
    assert values == {"a": {"b": 1}}


@pytest.mark.parametrize("text", ["rounds", "=3", "a..b=3"])
def test_an_invalid_override_shows_the_syntax(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set .*: write it as key=value"):
        override({"rounds": 3}, [text])


def test_an_override_inside_a_plain_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^rounds\.x cannot be set: rounds is not a table"):
        override({"rounds": 3}, ["rounds.x=3"])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": {"lr": -1}}, "algorithm.lr = -1: must be greater than 0"),
    ({"algoritm": {}}, "algoritm is not a setting; did you mean algorithm?"),
    ({"lr": 0.3}, "lr is not a setting; did you mean algorithm.lr?"),
    (
        {"data": {"clients": 3}},
        "data.clients is not a setting; did you mean data.partition.clients or evaluation.clients?",
    ),
    (
        {"cohort": {"clients": 6}},
        "cohort.clients is not a setting; did you mean clients_per_block or clients_per_round?",
    ),
    ({"data": {"rho": 3}}, "data.rho is not a setting; did you mean data.partition.rho?"),
    ({"data": {"partition": {"knd": "iid"}}}, "data.partition.knd is not a setting of dirichlet; did you mean kind?"),
    (
        {"data": {"partition": {"kind": "iid", "rho": 1}}},
        "data.partition.rho is not a setting of iid; it is a setting of dirichlet, dirichlet_free: remove it, or "
        "change data.partition.kind",
    ),
    ({"algorithm": 3}, "algorithm = 3 is not a table; write [algorithm], or pass an instance of Algorithm"),
    ({"version": 1}, "version = 1: must be 3; use the version of raybcgd that wrote it"),
    ({"algorithm": {"momentun": 0.5}}, "algorithm.momentun is not a setting of fedbcgd+; did you mean momentum?"),
    (
        {"algorithm": {"name": "fedavg", "momentum": 0.5}},
        "algorithm.momentum is not a setting of fedavg; it is a setting of fedavgm, fedbcgd, fedbcgd+: remove it, or "
        "change algorithm.name",
    ),
    ({"algorithm": {"name": "fedbcd"}}, 'algorithm.name = "fedbcd" is unknown; did you mean fedbcgd?'),
    ({"engine": "gpu"}, "engine = 'gpu': must be 'ray' or 'local'"),
    ({"data": 3}, "data = 3: must be a table"),
    ({"local": {"batch_size": 0}}, "local.batch_size = 0: must be at least 1, or 'full'"),
    ({"blocks": {"groups": [["a"], 3]}}, 'blocks.groups[1] = 3: must be a list, such as ["a", "b"]'),
    ({"blocks": {"groups": 3}}, "blocks.groups = 3: must be a list of lists"),
    ({"compare": {"seeds": "[0,x]"}}, "compare.seeds = '[0,x]': must be a list, such as [0, 1, 2]"),
    (
        {"data": {"source": "parquet", "feature_columns": "f0"}},
        "data.feature_columns = 'f0': must be a list, such as [\"f0\"]",
    ),
    ({"data": {"augment": "crop"}}, "data.augment = 'crop': must be a list, such as [\"crop\"]"),
    ({"algorithm": {"lr_milestones": 3}}, "algorithm.lr_milestones = 3: must be a list, such as [0, 1, 2]"),
    ({"analysis": {"conformal_levels": 0.9}}, "analysis.conformal_levels = 0.9: must be a list, such as [0.5, 0.9]"),
    ({"evaluation": {"metrics": "top5"}}, "evaluation.metrics = 'top5': must be a list, such as [\"top5\"]"),
    ({"compare": {"variants": 3}}, "compare.variants = 3: must be a list"),
    (
        {"blocks": {"shared": 0.5}},
        "blocks.shared = 0.5: must be 'last', 'none' or 'all', or a list, such as [\"a\", \"b\"], or a valid "
        "integer, got a number with a fractional part",
    ),
    ({"compare": {"variants": [{}, {"labl": "x"}]}}, "compare.variants[1].labl is not a setting; did you mean label?"),
    ({"rounds": 0, "evaluation": {"every": 0}}, "rounds = 0: must be at least 1 (other errors: 1)"),
]


@pytest.mark.parametrize(("values", "line"), WRONG, ids=[line.split(" ")[0] for _, line in WRONG])
def test_an_error_names_the_setting_and_the_fix(values: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(values)
    assert str(caught.value) == line


def test_an_unknown_method_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r'use one of fedavg, .*fedbcgd\+.*, or "package\.module:Name"$'):
        make_config({"algorithm": {"name": "nonsense"}})


@pytest.mark.parametrize("name", ["no_such_module:X", "raybcgd:NoSuchClass", "raybcgd:Config"])
def test_a_class_that_is_not_an_algorithm_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.name = "):
        make_config({"algorithm": {"name": name}})


@pytest.mark.parametrize("content", [b"rounds = ", b"\xff\xfe", b"[a\n"])
def test_invalid_toml_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_config(path)


def test_a_variant_keeps_the_settings_that_its_method_has() -> None:
    base = make_config({"algorithm": {"name": "fedbcgd+", "lr": 0.2, "momentum": 0.3}, "compare": {"target": 0.5}})
    plain = vary(base, Variant(algorithm={"name": "fedavg"}))
    assert plain.algorithm == FedAvg(lr=0.2)
    assert plain.compare is None
    other = vary(base, Variant(algorithm={"momentum": 0.9}, blocks={"count": 2}, rounds=7))
    assert (other.algorithm.name, getattr(other.algorithm, "momentum", None)) == ("fedbcgd+", 0.9)
    assert (other.algorithm.lr, other.blocks.count, other.rounds) == (0.2, 2, 7)


def test_a_config_extends_another(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "base.toml").write_text("rounds = 7\n[data.partition]\nrho = 0.6\nclients = 30\n[local]\nepochs = 2\n")
    (tmp_path / "sub" / "one.toml").write_text('extends = "../base.toml"\nseed = 3\n[data.partition]\nrho = 0.1\n')
    (tmp_path / "sub" / "two.toml").write_text('extends = "one.toml"\n[local]\nbatch_size = 4\n')
    config = load_config(tmp_path / "sub" / "two.toml", ["data.partition.clients=20"])
    assert (config.seed, config.rounds) == (3, 7)
    assert (config.data.partition.rho, config.data.partition.clients) == (0.1, 20)
    assert (config.local.epochs, config.local.batch_size) == (2, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extends = "none.toml"', r"cannot read the config .*none\.toml, which .*x\.toml extends"),
        ('extends = "x.toml"', "is circular; name another config"),
        ("extends = 3", "extends = 3 in .*x.toml is not a path; name another config"),
    ],
)
def test_an_invalid_extends_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "x.toml")


def test_a_new_choice_drops_settings_that_it_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(
        '[algorithm]\nname = "fedbcgd"\nlr = 0.03\nmomentum = 0.7\n[wire]\ncodec = "qsgd"\nlevels = 7\n'
        "[cohort]\nclients_per_block = 3\n[hosts]\ncount = 2\n[data.partition]\nrho = 0.1\nclients = 30\n"
    )
    settings = ["algorithm.name=fedavg", "wire.codec=bf16", "cohort.clients_per_round=9", "hosts.max_count=4"]
    settings += ["data.partition.kind=iid"]
    (tmp_path / "child.toml").write_text(
        'extends = "base.toml"\nalgorithm.name = "fedavg"\nwire.codec = "bf16"\ncohort.clients_per_round = 9\n'
        'hosts.max_count = 4\ndata.partition.kind = "iid"\n'
    )
    for config in (load_config(tmp_path / "base.toml", settings), load_config(tmp_path / "child.toml")):
        assert (config.algorithm.name, config.algorithm.lr, config.wire.codec) == ("fedavg", 0.03, "bf16")
        assert (config.cohort.clients_per_block, config.cohort.clients_per_round) == (None, 9)
        assert (config.hosts.count, config.hosts.max_count) == (None, 4)
        assert config.data.partition == IID(clients=30)
    with pytest.raises(ConfigError, match=r"algorithm\.momentum is not a setting of fedavg"):
        load_config(tmp_path / "base.toml", ["algorithm.name=fedavg", "algorithm.momentum=0.5"])
    with pytest.raises(ConfigError, match=r"data\.partition\.rho is not a setting of iid"):
        load_config(tmp_path / "base.toml", ["data.partition.kind=iid", "data.partition.rho=0.5"])


def test_the_same_choice_keeps_its_settings() -> None:
    tables = {"data": {"partition": {"kind": "shards", "shards_per_client": 3}}}
    assert override(tables, ["data.partition.kind=shards", "data.partition.clients=9"]) == {
        "data": {"partition": {"kind": "shards", "shards_per_client": 3, "clients": 9}}
    }


def test_the_tables_of_a_config_give_the_same_config() -> None:
    config = make_config({"wire": {"codec": "topk", "k": 3}, "data": {"partition": {"kind": "iid"}}, "rounds": 3})
    assert tables_of(config) == {"wire": {"codec": TopK, "k": 3}, "data": {"partition": {"kind": IID}}, "rounds": 3}
    assert make_config(tables_of(config)) == config


def test_importing_the_config_imports_neither_torch_nor_ray() -> None:
    code = "import raybcgd.config, sys; print({'torch', 'ray'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize(
    ("tables", "line"),
    [
        ({"model": {"options": {"scale": float("nan")}}}, "model.options.scale = nan: must be a finite number"),
        ({"data": {"options": {"x": [1.0, float("inf")]}}}, r"data.options.x\[1\] = inf: must be a finite number"),
        ({"algorithm": {"lr": float("inf")}}, "algorithm.lr = inf: must be a finite number"),
    ],
)
def test_numbers_that_are_not_finite_are_refused(tables: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{line}$"):
        make_config(tables)


@pytest.mark.parametrize(
    ("tables", "line"),
    [
        ({"seed": "0-3"}, "seed = '0-3': must be a number, or a list of numbers"),
        ({"compare": {"seeds": ["0-3", "1"]}}, "compare.seeds = '0-3': must be a number, or a list of numbers"),
        ({"algorithm": {"lr_rounds": "00-3"}}, "algorithm.lr_rounds = '00-3': must be a number, or a list of numbers"),
    ],
)
def test_a_range_is_not_read_as_a_negative_number(tables: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
        make_config(tables)


def test_texts_may_look_like_ranges() -> None:
    assert make_config({"data": {"source": "parquet", "root": "0-3"}}).data.root == "0-3"
