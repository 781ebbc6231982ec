"""FedBCGD (Liu et al., ACM MM 2024): published numbers of tables 2 to 6 and of the figures."""

from raybcgd.paper.published import NEVER, Experiment, Row

_METHODS = ("SGD", "FedAvg", "FedAvgM", "FedAdam", "SCAFFOLD", "FedDC", "FedBCGD", "FedBCGD+")
_COMPRESSED = ("FedAvg", "TOP-k", "FedPAQ", "FedBCGD", "FedBCGD+", "QSGD+FedBCGD", "QSGD+FedBCGD+")

_Cell = tuple[float, float] | tuple[float, float, float]
"""Accuracy, deviation and, except for SGD, the upload to the target in d."""

_TABLE2: dict[str, tuple[_Cell, ...]] = {
    "lenet5": (
        (53.7, 0.2),
        (41.2, 0.2, 558),
        (48.2, 0.5, 277),
        (46.2, 0.8, 391),
        (50.3, 0.2, 214),
        (53.2, 0.3, 302),
        (55.7, 0.4, 77),
        (55.6, 0.3, 75),
    ),
    "vgg11": (
        (56.3, 0.3),
        (48.7, 0.4, 720),
        (51.7, 0.6, 299),
        (50.9, 0.5, 597),
        (47.9, 0.2, NEVER),
        (48.2, 0.2, 956),
        (62.2, 0.4, 107),
        (58.7, 0.3, 105),
    ),
    "resnet18": (
        (62.2, 0.1),
        (54.2, 0.2, 927),
        (61.8, 0.8, 398),
        (53.9, 0.4, NEVER),
        (52.3, 0.2, NEVER),
        (46.6, 0.1, NEVER),
        (68.1, 0.5, 277),
        (65.1, 1.8, 154),
    ),
    "vgg19": (
        (58.9, 0.1),
        (47.6, 0.1, 735),
        (56.0, 0.3, 403),
        (58.7, 0.2, 367),
        (58.3, 0.5, 556),
        (56.8, 0.4, 321),
        (61.1, 0.3, 206),
        (63.6, 0.4, 176),
    ),
}
_TABLE3: dict[str, tuple[_Cell, ...]] = {
    "lenet5": (
        (83.1, 0.2),
        (79.6, 0.3, 498),
        (81.1, 0.6, 360),
        (78.3, 1.2, 860),
        (82.8, 0.7, 540),
        (83.0, 0.2, 280),
        (84.7, 0.7, 249),
        (83.5, 0.3, 182),
    ),
    "vgg11": (
        (87.4, 0.3),
        (83.3, 0.7, 630),
        (83.7, 0.4, 830),
        (85.4, 1.1, 478),
        (86.9, 0.6, 278),
        (83.1, 0.6, 866),
        (88.4, 0.7, 292),
        (88.3, 0.4, 209),
    ),
    "resnet18": (
        (90.1, 0.1),
        (89.0, 0.5, 698),
        (89.1, 0.7, 882),
        (81.1, 1.3, NEVER),
        (89.0, 0.4, 747),
        (88.0, 0.6, 1985),
        (92.1, 0.3, 398),
        (90.3, 0.5, 266),
    ),
    "vgg19": (
        (88.6, 0.1),
        (84.9, 0.7, 499),
        (87.4, 0.5, 252),
        (87.5, 0.9, 298),
        (85.5, 0.5, 358),
        (78.0, 0.9, NEVER),
        (87.8, 0.4, 117),
        (87.1, 0.4, 207),
    ),
}
_TABLE4: dict[str, tuple[_Cell, ...]] = {
    "cifar100": (
        (45.8, 0.3, 741),
        (48.3, 0.6, 769),
        (49.9, 0.5, 610),
        (44.3, 0.3, NEVER),
        (46.6, 0.8, 278),
        (59.5, 0.3, 147),
        (59.9, 0.4, 200),
    ),
    "cifar10": (
        (78.1, 0.4, 952),
        (78.6, 0.8, 997),
        (71.4, 1.1, NEVER),
        (76.3, 1.4, NEVER),
        (79.1, 0.8, 948),
        (86.2, 0.9, 212),
        (80.2, 1.3, 768),
    ),
}
_TABLE5: dict[str, tuple[_Cell, ...]] = {
    "cifar100": (
        (81.5, 0.3),
        (90.4, 0.1, 24),
        (88.7, 0.3, 32),
        (87.6, 0.2, NEVER),
        (88.2, 0.3, 88),
        (85.8, 0.4, 25),
        (92.0, 0.2, 7),
        (90.6, 0.3, 14),
    ),
    "tinyimagenet": (
        (76.7, 0.2),
        (71.2, 0.1, 67),
        (76.7, 0.4, 10),
        (65.5, 0.6, NEVER),
        (56.8, 1.1, NEVER),
        (55.0, 1.2, NEVER),
        (83.5, 0.2, 5.8),
        (81.3, 0.2, 4.6),
    ),
}
_TABLE6: dict[str, tuple[_Cell, ...]] = {
    "cifar100": (
        (35.4, 0.1, NEVER),
        (42.2, 0.5, 112),
        (43.3, 0.2, 110),
        (48.7, 0.2, 91),
        (49.6, 0.3, 89),
        (52.2, 0.4, 61),
        (53.1, 0.2, 56),
    ),
    "cifar10": (
        (73.2, 0.1, 133),
        (74.5, 0.4, 92),
        (75.2, 0.4, 121),
        (77.2, 0.2, 65),
        (80.6, 0.2, 57),
        (82.6, 0.1, 32),
        (83.2, 0.3, 29),
    ),
}


def _rows(methods: tuple[str, ...], cells: tuple[_Cell, ...]) -> tuple[Row, ...]:
    return tuple(
        Row(
            label=method,
            accuracy=cell[0],
            deviation=cell[1],
            upload_d=cell[2] if len(cell) > 2 else None,
            note="beyond the budget of 1000 d; a misprint?" if 1000 < cell[-1] < NEVER else "",
        )
        for method, cell in zip(methods, cells, strict=True)
    )


def _experiment(
    name: str, config: str, model: str, data: str, about: str, rows: tuple[Row, ...] = (), rho: float = 0.6
) -> Experiment:
    file = f"fedbcgd/{config}.toml"
    return Experiment(paper="fedbcgd", name=name, model=model, data=data, rho=rho, config=file, about=about, rows=rows)


def _tables() -> list[Experiment]:
    found = []
    for name, data, table in (("table2", "cifar100", _TABLE2), ("table3", "cifar10", _TABLE3)):
        about = "accuracy and upload to the target, budget 1000 d"
        found += [
            _experiment(name, f"{name}-{model}", model, data, about, _rows(_METHODS, cells))
            for model, cells in table.items()
        ]
    about = "accuracy and upload to the target, budget 1000 d, more label skew"
    found += [
        _experiment("table4", f"table4-{data}", "resnet18", data, about, _rows(_METHODS[1:], cells), rho=0.1)
        for data, cells in _TABLE4.items()
    ]
    about = "accuracy and upload to the target, budget 100 d"
    found += [
        _experiment("table5", f"table5-{data}", "vit_b_16", data, about, _rows(_METHODS, cells))
        for data, cells in _TABLE5.items()
    ]
    about = "compressed uploads, budget 200 d"
    found += [
        _experiment("table6", f"table6-{data}", "lenet5", data, about, _rows(_COMPRESSED, cells))
        for data, cells in _TABLE6.items()
    ]
    return found


def _figures() -> list[Experiment]:
    found = [
        _experiment(
            "figure3", f"figure3-{model}-{data}", model, data, "curves of tables 2 and 3", _rows(_METHODS, cells)
        )
        for data, table in (("cifar10", _TABLE3), ("cifar100", _TABLE2))
        for model, cells in table.items()
    ]
    found.append(_experiment("figure4", "figure4", "resnet18", "cifar100", "number of blocks, budget 200 d"))
    found += [
        _experiment("figure5", f"figure5-{data}", "lenet5", data, "freezing, shared block and momentum")
        for data in ("cifar10", "cifar100")
    ]
    found += [
        _experiment("figure6", f"figure6-{data}", "vit_b_16", data, "curves of table 5", _rows(_METHODS, cells))
        for data, cells in _TABLE5.items()
    ]
    found.append(_experiment("figure7", "figure7", "resnet18", "cifar100", "server momentum"))
    for number in (8, 9):
        for part, model, about in (("a", "logistic", "convex problem"), ("b", "sigmoid_erm", "non-convex problem")):
            name = f"figure{number}{part}"
            found.append(_experiment(name, name, model, "emnist", about, rho=0.1))
    return found


EXPERIMENTS = (*_tables(), *_figures())
