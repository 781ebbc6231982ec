"""Block-cyclic data (Ding et al., 2020): published numbers of table 1 and figures 2 to 5."""

from raybcgd.paper.published import Experiment, Row

_STEPS = {
    "MM-PSGD": {5: 3210, 10: 2010, 15: 1610, 20: 1610},
    "MC-PSGD": {5: 3210, 10: 2010, 15: 1610, 20: 1410},
}
"""Table 1: rounds to 60 % by number of local steps."""
_LOCAL_STEPS = tuple(
    Row(label=f"{method}, I = {steps}", rounds=rounds)
    for method, cells in _STEPS.items()
    for steps, rounds in cells.items()
)
_METHODS = (
    Row(label="FedAvg, cyclic", accuracy=56, highest=59),
    Row(label="FedAvg, shuffled", accuracy=62),
    Row(label="MM-PSGD", accuracy=65),
    Row(label="MC-PSGD", accuracy=65),
)
_PHASES = (
    Row(label="FedAvg, cyclic, M = 2", accuracy=61),
    Row(label="FedAvg, cyclic, M = 10", accuracy=53, highest=57),
    Row(label="MM-PSGD, M = 2", accuracy=63),
    Row(label="MM-PSGD, M = 10", accuracy=67),
    *(Row(label=f"MC-PSGD, M = {count}", accuracy=64, highest=65) for count in (2, 5, 10)),
)
_PARTICIPATION = tuple(
    Row(label=f"{method}, {percent} %", accuracy=low, highest=low + 1)
    for method, low in (("MM-PSGD", 60), ("MC-PSGD", 61))
    for percent in (5, 10, 15, 20)
)


def _experiment(name: str, about: str, rows: tuple[Row, ...]) -> Experiment:
    return Experiment(
        paper="block-cyclic",
        name=name,
        model="cnn",
        data="cifar10",
        rho=None,
        config=f"block-cyclic/{name}.toml",
        about=about,
        rows=rows,
        measure="best",
    )


EXPERIMENTS = (
    _experiment("table1", "rounds to 60 % by number of local steps", _LOCAL_STEPS),
    _experiment("figure2", "best accuracy", _METHODS),
    _experiment("figure3", "curves of table 1", _LOCAL_STEPS),
    _experiment("figure4", "best accuracy by number of data phases", _PHASES),
    _experiment("figure5", "best accuracy by share of sampled clients", _PARTICIPATION),
)
