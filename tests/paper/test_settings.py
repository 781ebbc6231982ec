"""The settings of every config, compared with tables that were typed from the papers a second time."""

from pathlib import Path
from typing import Any

import pytest
import torch

from raybcgd.compare.comparison import variant_configs
from raybcgd.config import Config, load_config
from raybcgd.model.blocks import divide
from raybcgd.model.zoo import build
from raybcgd.paper.catalogue import EXPERIMENTS, config_folder
from raybcgd.paper.published import Experiment

FOLDER = Path(__file__).parents[2] / "jobs" / "configs"
CLASSES = {"cifar10": 10, "cifar100": 100, "tiny_imagenet": 200, "emnist": 2}

TARGETS = {
    **{("fedbcgd", "table2", m, "cifar100"): t for m, t in (("lenet5", 0.40), ("vgg11", 0.48))},
    **{("fedbcgd", "table2", m, "cifar100"): t for m, t in (("resnet18", 0.54), ("vgg19", 0.45))},
    **{("fedbcgd", "table3", m, "cifar10"): t for m, t in (("lenet5", 0.78), ("vgg11", 0.83))},
    **{("fedbcgd", "table3", m, "cifar10"): t for m, t in (("resnet18", 0.88), ("vgg19", 0.84))},
    ("fedbcgd", "table4", "resnet18", "cifar100"): 0.45,
    ("fedbcgd", "table4", "resnet18", "cifar10"): 0.78,
    ("fedbcgd", "table5", "vit_b_16", "cifar100"): 0.88,
    ("fedbcgd", "table5", "vit_b_16", "tinyimagenet"): 0.70,
    ("fedbcgd", "table6", "lenet5", "cifar100"): 0.40,
    ("fedbcgd", "table6", "lenet5", "cifar10"): 0.70,
    ("fedbcgd", "figure4", "resnet18", "cifar100"): 0.53,
    **{("fedpvr", "table2", m, d): t for m in ("vgg11", "resnet8") for d, t in (("cifar10", 0.66), ("cifar100", 0.44))},
    ("block-cyclic", "table1", "cnn", "cifar10"): 0.6,
}
BUDGETS = {"table2": 1000, "table3": 1000, "table4": 1000, "table5": 100, "table6": 200, "figure4": 200}
BLOCKS = {"lenet5": 5, "vgg11": 5, "resnet18": 5, "vgg19": 5, "vit_b_16": 6, "logistic": 5, "sigmoid_erm": 5}
# (FedAvg, SCAFFOLD, FedPVR) by model, data set and alpha. c: constant, m: multi-step, cos: cosine.
RATES = {
    ("vgg11", "cifar10", 0.1): ("c 0.05", "m 0.05", "c 0.05"),
    ("vgg11", "cifar10", 0.5): ("c 0.1", "c 0.1", "c 0.1"),
    ("vgg11", "cifar100", 0.1): ("c 0.1", "c 0.1", "c 0.1"),
    ("vgg11", "cifar100", 1.0): ("c 0.05", "c 0.1", "c 0.1"),
    ("resnet8", "cifar10", 0.1): ("c 0.1", "c 0.1", "c 0.1"),
    ("resnet8", "cifar10", 0.5): ("c 0.2", "c 0.3", "c 0.3"),
    ("resnet8", "cifar100", 0.1): ("c 0.1", "cos 0.2", "c 0.1"),
    ("resnet8", "cifar100", 1.0): ("c 0.1", "c 0.2", "c 0.1"),
}
SCHEDULES = {"constant": "c", "multistep": "m", "cosine": "cos"}
METHODS = ("FedAvg", "FedAvgM", "FedAdam", "SCAFFOLD", "FedDC", "FedBCGD", "FedBCGD+")


def load(experiment: Experiment) -> Config:
    return load_config(FOLDER / experiment.config)


def of(paper: str) -> Any:
    found = [one for one in EXPERIMENTS if one.paper == paper]
    return pytest.mark.parametrize("experiment", found, ids=[one.config for one in found])


def algorithm(config: Config) -> dict[str, Any]:
    return config.algorithm.model_dump()


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=[one.config for one in EXPERIMENTS])
def test_a_config_runs_every_published_row_on_the_named_data(experiment: Experiment) -> None:
    config = load(experiment)
    assert {label for row in experiment.rows for label in row.run_labels} <= set(variant_configs(config))
    names = {"tinyimagenet": "tiny_imagenet", "vgg11": "vgg11-fedpvr" if experiment.paper == "fedpvr" else "vgg11"}
    assert config.data.source == names.get(experiment.data, experiment.data)
    assert config.model.name == names.get(experiment.model, experiment.model)
    key = (experiment.paper, experiment.name, experiment.model, experiment.data)
    assert config.compare is not None
    assert config.compare.target == TARGETS.get(key, config.compare.target)
    if experiment.rho is not None:
        assert {variant.data.partition.rho for variant in variant_configs(config).values()} == {experiment.rho}


def test_every_target_was_compared() -> None:
    found = {(one.paper, one.name, one.model, one.data) for one in EXPERIMENTS}
    assert found >= TARGETS.keys()


@of("fedbcgd")
def test_fedbcgd(experiment: Experiment) -> None:
    config = load(experiment)
    convex, vit = experiment.name[:-1] in ("figure8", "figure9"), experiment.model == "vit_b_16"
    if experiment.name in BUDGETS:
        assert config.budget.upload_d == BUDGETS[experiment.name]
    if not convex:
        assert experiment.rho == (0.1 if experiment.name == "table4" else 0.6)
    for label, variant in variant_configs(config).items():
        assert variant.data.partition.clients == 100
        assert variant.cohort.clients_per_round == 10
        assert (variant.local.epochs, variant.local.batch_size) == (
            (1, 16) if vit else (1 if convex or label == "SGD" else 5, 50)
        )
        settings = algorithm(variant)
        assert (settings["lr_schedule"], settings["lr_decay"]) == ("exponential", 0.998)
        assert settings["weight_decay"] == (1e-4 if convex else 0.001)
        assert settings["lr"] in (0.01, 0.03, 0.05, 0.1, 0.2, 0.3)
        assert settings.get("alpha", 0.01) == 0.01
        if experiment.name.startswith("table"):
            assert settings.get("momentum", 0.8) == 0.8
            assert settings.get("control_upload", "sent") == "sent", "the paper's d counts control variates"
    if experiment.name in ("table2", "table3", "table4", "table5"):
        with_sgd = ("SGD",) if experiment.name != "table4" else ()
        assert tuple(variant_configs(config)) == (*with_sgd, *METHODS)
    if experiment.name != "figure4":
        assert blocks(config) == BLOCKS[experiment.model]


def blocks(config: Config) -> int:
    source = str(config.data.source)
    shape = (1, 28, 28) if source == "emnist" else (3, 32, 32)
    options = {key: value for key, value in config.model.options.items() if key != "weights"}
    with torch.device("meta"):
        module = build(config.model.model_copy(update={"options": options}), shape, CLASSES[source], 0)
    return len(divide(module, config.blocks).blocks)


def by_name(name: str) -> Config:
    return load_config(FOLDER / f"{name}.toml")


def test_figures_of_fedbcgd() -> None:
    four = variant_configs(by_name("fedbcgd/figure4"))
    assert [variant.blocks.count for variant in four.values()] == [1, 2, 5, 10, 20]
    momenta = [algorithm(variant)["momentum"] for variant in variant_configs(by_name("fedbcgd/figure7")).values()]
    assert momenta == [0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    for data in ("cifar10", "cifar100"):
        curves = variant_configs(by_name(f"fedbcgd/figure5-{data}"))
        made = [(algorithm(v)["freeze"], v.blocks.shared != "none", algorithm(v)["momentum"]) for v in curves.values()]
        assert made == [
            (True, False, 0.0),
            (True, True, 0.0),
            (False, False, 0.0),
            (False, True, 0.0),
            (False, True, 0.8),
        ]
    convex, other = by_name("fedbcgd/figure8a"), by_name("fedbcgd/figure8b")
    assert (convex.model.loss, other.model.loss) == ("binary_cross_entropy", "sigmoid")
    for config in (convex, other):
        assert (config.data.emnist_split, config.data.task, config.data.positive) == ("byclass", "binary", (0,))
        assert config.data.partition.rho == 0.1


@of("fedpvr")
def test_fedpvr(experiment: Experiment) -> None:
    config = load(experiment)
    assert config.compare is not None
    assert config.compare.seeds == (0, 1, 2), "mean of three runs"
    assert config.data.validation_share == 0.01
    assert config.data.augment == ("crop", "flip")
    assert config.rounds == (80 if experiment.name == "figure3" else 100)
    variants = variant_configs(config)
    for variant in variants.values():
        assert (variant.data.partition.clients, variant.cohort.clients_per_round) == (10, 10)
        assert (variant.local.batch_size, variant.local.epochs) == (256, 10)
        assert algorithm(variant)["weight_decay"] == 0
    if experiment.name in ("table2", "table3"):
        assert experiment.rho is not None
        found = [algorithm(variants[label]) for label in ("FedAvg", "SCAFFOLD", "FedPVR")]
        rates = tuple(f"{SCHEDULES[one['lr_schedule']]} {one['lr']}" for one in found)
        assert rates == RATES[experiment.model, experiment.data, experiment.rho]
        assert [algorithm(variants[f"FedProx, mu = {mu}"])["mu"] for mu in (0.1, 0.5, 1.0)] == [0.1, 0.5, 1.0]
    if experiment.name == "table3":
        assert variants["SGD"].rounds * variants["SGD"].local.epochs == 800


def test_figures_of_fedpvr() -> None:
    two = variant_configs(by_name("fedpvr/figure2"))
    assert [variant.data.partition.rho for variant in two.values()] == [0.1, 100]
    assert all(variant.analysis and variant.analysis.cka_clients == 10 for variant in two.values())
    three = by_name("fedpvr/figure3-vgg11-cifar10")
    assert three.analysis is not None
    assert len(three.analysis.conformal_levels) >= 5
    five = variant_configs(by_name("fedpvr/figure5"))
    assert five["SVR:0→20"].blocks.shared == "all"
    assert five["SVR:16→20"].blocks.shared == ("classifier",)


@of("block-cyclic")
def test_block_cyclic(experiment: Experiment) -> None:
    config = load(experiment)
    assert config.evaluation.every == 10
    for label, variant in variant_configs(config).items():
        phases = variant.data.phases
        assert phases is not None
        assert variant.rounds == 10 * phases.count * phases.rounds_per_phase == 10_000, "ten cycles"
        assert (phases.deal, phases.size_deviation) == ("sequence", 0.2)
        assert phases.shuffled == ("shuffled" in label)
        settings = algorithm(variant)
        assert (variant.local.batch_size, settings["lr"], settings["lr_schedule"]) == (2, 0.01, "constant")
        assert (settings.get("averaging", "exponential"), settings.get("base", 0.5)) == ("exponential", 0.5)
        sampled = variant.cohort.clients_per_round
        if experiment.name == "figure5":
            assert (variant.data.partition.clients, label.split(", ")[1]) == (1000, f"{(sampled or 0) // 10} %")
        else:
            assert (variant.data.partition.clients, sampled) == (100, 100)
        if experiment.name in ("table1", "figure3"):
            assert label.endswith(f"I = {variant.local.steps}")
        else:
            assert variant.local.steps == 10
        if experiment.name == "figure4":
            assert label.endswith(f"M = {phases.count}")
        else:
            assert phases.count == 5


def test_the_configs_are_found_next_to_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_folder() == FOLDER
