"""The published numbers in the package, compared with tables that were typed from the papers a second time."""

import re

import pytest

from raybcgd.paper.catalogue import EXPERIMENTS, select
from raybcgd.paper.published import NEVER, Row

CONVOLUTIONAL = {
    "table2": """
        lenet5 | vgg11 | resnet18 | vgg19
        SGD | 53.7±.2 | 56.3±.3 | 62.2±.1 | 58.9±.1
        FedAvg | 41.2±.2 (558) | 48.7±.4 (720) | 54.2±.2 (927) | 47.6±.1 (735)
        FedAvgM | 48.2±.5 (277) | 51.7±.6 (299) | 61.8±.8 (398) | 56.0±.3 (403)
        FedAdam | 46.2±.8 (391) | 50.9±.5 (597) | 53.9±.4 (∞) | 58.7±.2 (367)
        SCAFFOLD | 50.3±.2 (214) | 47.9±.2 (∞) | 52.3±.2 (∞) | 58.3±.5 (556)
        FedDC | 53.2±.3 (302) | 48.2±.2 (956) | 46.6±.1 (∞) | 56.8±.4 (321)
        FedBCGD | 55.7±.4 (77) | 62.2±.4 (107) | 68.1±.5 (277) | 61.1±.3 (206)
        FedBCGD+ | 55.6±.3 (75) | 58.7±.3 (105) | 65.1±1.8 (154) | 63.6±.4 (176)""",
    "table3": """
        lenet5 | vgg11 | resnet18 | vgg19
        SGD | 83.1±.2 | 87.4±.3 | 90.1±.1 | 88.6±.1
        FedAvg | 79.6±.3 (498) | 83.3±.7 (630) | 89.0±.5 (698) | 84.9±.7 (499)
        FedAvgM | 81.1±.6 (360) | 83.7±.4 (830) | 89.1±.7 (882) | 87.4±.5 (252)
        FedAdam | 78.3±1.2 (860) | 85.4±1.1 (478) | 81.1±1.3 (∞) | 87.5±.9 (298)
        SCAFFOLD | 82.8±.7 (540) | 86.9±.6 (278) | 89.0±.4 (747) | 85.5±.5 (358)
        FedDC | 83.0±.2 (280) | 83.1±.6 (866) | 88.0±.6 (1985) | 78.0±.9 (∞)
        FedBCGD | 84.7±.7 (249) | 88.4±.7 (292) | 92.1±.3 (398) | 87.8±.4 (117)
        FedBCGD+ | 83.5±.3 (182) | 88.3±.4 (209) | 90.3±.5 (266) | 87.1±.4 (207)""",
}
BY_DATA = {
    "table4": """
        cifar100 | cifar10
        FedAvg | 45.8±.3 (741) | 78.1±.4 (952)
        FedAvgM | 48.3±.6 (769) | 78.6±.8 (997)
        FedAdam | 49.9±.5 (610) | 71.4±1.1 (∞)
        SCAFFOLD | 44.3±.3 (∞) | 76.3±1.4 (∞)
        FedDC | 46.6±.8 (278) | 79.1±.8 (948)
        FedBCGD | 59.5±.3 (147) | 86.2±.9 (212)
        FedBCGD+ | 59.9±.4 (200) | 80.2±1.3 (768)""",
    "table5": """
        cifar100 | tinyimagenet
        SGD | 81.5±.3 | 76.7±.2
        FedAvg | 90.4±.1 (24) | 71.2±.1 (67)
        FedAvgM | 88.7±.3 (32) | 76.7±.4 (10)
        FedAdam | 87.6±.2 (∞) | 65.5±.6 (∞)
        SCAFFOLD | 88.2±.3 (88) | 56.8±1.1 (∞)
        FedDC | 85.8±.4 (25) | 55.0±1.2 (∞)
        FedBCGD | 92.0±.2 (7) | 83.5±.2 (5.8)
        FedBCGD+ | 90.6±.3 (14) | 81.3±.2 (4.6)""",
    "table6": """
        cifar100 | cifar10
        FedAvg | 35.4±.1 (∞) | 73.2±.1 (133)
        TOP-k | 42.2±.5 (112) | 74.5±.4 (92)
        FedPAQ | 43.3±.2 (110) | 75.2±.4 (121)
        FedBCGD | 48.7±.2 (91) | 77.2±.2 (65)
        FedBCGD+ | 49.6±.3 (89) | 80.6±.2 (57)
        QSGD+FedBCGD | 52.2±.4 (61) | 82.6±.1 (32)
        QSGD+FedBCGD+ | 53.1±.2 (56) | 83.2±.3 (29)""",
}
PVR_CASES = (("cifar10", 0.1), ("cifar10", 0.5), ("cifar100", 0.1), ("cifar100", 1.0))
PVR = {
    "table2": {
        "vgg11": "FedAvg 55, 15, 100+, 80 | FedProx 52, 16, 100+, 80 | SCAFFOLD 39, 14, 80, 36 | FedPVR 27, 9, 37, 12",
        "resnet8": "FedAvg 90, 15, 100+, 56 | FedProx 75, 20, 100+, 59 | SCAFFOLD 57, 9, 61, 25 | FedPVR 50, 5, 66, 15",
    },
    "table3": {
        "vgg11": "SGD 86.0, 86.0, 56.3, 56.3 | FedAvg 69.3, 80.9, 34.3, 45.0 | FedProx 72.1, 80.4, 35.0, 43.2 | "
        "SCAFFOLD 74.1, 83.5, 43.4, 50.6 | FedPVR 78.2, 84.9, 43.5, 58.0",
        "resnet8": "SGD 81.7, 81.7, 55.7, 55.7 | FedAvg 64.9, 79.1, 38.8, 47.0 | FedProx 66.1, 77.9, 42.0, 47.2 | "
        "SCAFFOLD 66.6, 80.3, 43.8, 52.3 | FedPVR 69.3, 83.6, 43.5, 52.3",
    },
}
CYCLIC = {
    "figure2": {"FedAvg, cyclic": (56, 59), "FedAvg, shuffled": 62, "MM-PSGD": 65, "MC-PSGD": 65},
    "figure4": {
        "FedAvg, cyclic, M = 2": 61,
        "FedAvg, cyclic, M = 10": (53, 57),
        "MM-PSGD, M = 2": 63,
        "MM-PSGD, M = 10": 67,
        "MC-PSGD, M = 2": (64, 65),
        "MC-PSGD, M = 5": (64, 65),
        "MC-PSGD, M = 10": (64, 65),
    },
    "figure5": {
        f"{name}, {share} %": limits
        for name, limits in (("MM-PSGD", (60, 61)), ("MC-PSGD", (61, 62)))
        for share in (5, 10, 15, 20)
    },
}
STEPS = {"MM-PSGD": (3210, 2010, 1610, 1610), "MC-PSGD": (3210, 2010, 1610, 1410)}


def columns(text: str) -> dict[str, dict[str, str]]:
    """Return the cells of a typed table: by column, then by method."""
    head, *lines = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    return {name: {line[0]: line[k] for line in lines} for k, name in enumerate(head, start=1)}


def typed(row: Row) -> str:
    """Return a row of the package in the form of the typed tables."""
    deviation = f"{row.deviation}".removeprefix("0")
    upload = "" if row.upload_d is None else " (∞)" if row.upload_d == NEVER else f" ({row.upload_d:g})"
    return f"{row.accuracy:.1f}±{deviation}{upload}"


@pytest.mark.parametrize("name", [*CONVOLUTIONAL, *BY_DATA])
def test_the_tables_of_fedbcgd(name: str) -> None:
    by_model = name in CONVOLUTIONAL
    expected = columns((CONVOLUTIONAL if by_model else BY_DATA)[name])
    found = {one.model if by_model else one.data: one.rows for one in select("fedbcgd", name)}
    assert {key: {row.label: typed(row) for row in rows} for key, rows in found.items()} == expected


@pytest.mark.parametrize("name", ["table2", "table3"])
@pytest.mark.parametrize("model", ["vgg11", "resnet8"])
def test_the_tables_of_fedpvr(name: str, model: str) -> None:
    for line in PVR[name][model].split(" | "):
        label, values = line.split(" ", 1)
        for (data, rho), value in zip(PVR_CASES, values.split(", "), strict=True):
            (experiment,) = select("fedpvr", name, model, data, rho)
            (row,) = [row for row in experiment.rows if row.label == label]
            shown = row.rounds if name == "table2" else row.accuracy
            assert shown == (NEVER if value == "100+" else float(value)), (label, data, rho)
            assert len(experiment.rows) == PVR[name][model].count(" | ") + 1


@pytest.mark.parametrize("name", CYCLIC)
def test_the_figures_on_block_cyclic_data(name: str) -> None:
    (experiment,) = select("block-cyclic", name)
    found = {row.label: row.accuracy if row.highest is None else (row.accuracy, row.highest) for row in experiment.rows}
    assert found == CYCLIC[name]


@pytest.mark.parametrize("name", ["table1", "figure3"])
def test_the_rounds_on_block_cyclic_data(name: str) -> None:
    (experiment,) = select("block-cyclic", name)
    expected = {
        f"{label}, I = {steps}": rounds
        for label, cells in STEPS.items()
        for steps, rounds in zip((5, 10, 15, 20), cells, strict=True)
    }
    assert {row.label: row.rounds for row in experiment.rows} == expected


def test_every_table_and_figure_is_there() -> None:
    found = {paper: {one.name for one in select(paper)} for paper in ("fedbcgd", "fedpvr", "block-cyclic")}
    figures = {f"figure{n}" for n in (3, 4, 5, 6, 7, "8a", "8b", "9a", "9b")}
    assert found["fedbcgd"] == {f"table{n}" for n in range(2, 7)} | figures
    assert found["fedpvr"] == {"table2", "table3", *(f"figure{n}" for n in (2, 3, 4, 5, "C2", "C3"))}
    assert found["block-cyclic"] == {"table1", *(f"figure{n}" for n in (2, 3, 4, 5))}
    for one in EXPERIMENTS:
        assert re.fullmatch(rf"{one.paper}/{one.name}(-.*)?\.toml", one.config), "the config has the number in its name"
