"""FedPVR (Li et al., CVPR 2023): published numbers of tables 2 and 3, and the figures."""

from raybcgd.paper.published import NEVER, Experiment, Row

_CASES = (("cifar10", 0.1), ("cifar10", 0.5), ("cifar100", 0.1), ("cifar100", 1.0))
_FEDPROX = tuple(f"FedProx, mu = {mu}" for mu in (0.1, 0.5, 1.0))

_ROUNDS: dict[str, dict[str, tuple[float, ...]]] = {
    "vgg11": {
        "FedAvg": (55, 15, NEVER, 80),
        "FedProx": (52, 16, NEVER, 80),
        "SCAFFOLD": (39, 14, 80, 36),
        "FedPVR": (27, 9, 37, 12),
    },
    "resnet8": {
        "FedAvg": (90, 15, NEVER, 56),
        "FedProx": (75, 20, NEVER, 59),
        "SCAFFOLD": (57, 9, 61, 25),
        "FedPVR": (50, 5, 66, 15),
    },
}
"""Table 2: rounds to 66 % (CIFAR-10) or 44 % (CIFAR-100), by case. NEVER: more than 100."""
_ACCURACY: dict[str, dict[str, tuple[float, ...]]] = {
    "vgg11": {
        "SGD": (86.0, 86.0, 56.3, 56.3),
        "FedAvg": (69.3, 80.9, 34.3, 45.0),
        "FedProx": (72.1, 80.4, 35.0, 43.2),
        "SCAFFOLD": (74.1, 83.5, 43.4, 50.6),
        "FedPVR": (78.2, 84.9, 43.5, 58.0),
    },
    "resnet8": {
        "SGD": (81.7, 81.7, 55.7, 55.7),
        "FedAvg": (64.9, 79.1, 38.8, 47.0),
        "FedProx": (66.1, 77.9, 42.0, 47.2),
        "SCAFFOLD": (66.6, 80.3, 43.8, 52.3),
        "FedPVR": (69.3, 83.6, 43.5, 52.3),
    },
}
"""Table 3: accuracy after 80 rounds, by case. SGD is centralised and does not depend on the partition."""


def _runs(method: str) -> tuple[str, ...]:
    return _FEDPROX if method == "FedProx" else ()


def _tables() -> list[Experiment]:
    found = []
    for model, methods in _ROUNDS.items():
        for case, (data, rho) in enumerate(_CASES):
            rows = tuple(Row(label=label, rounds=cells[case], runs=_runs(label)) for label, cells in methods.items())
            name, about = "table2", f"rounds to {66 if data == 'cifar10' else 44} %"
            config = f"fedpvr/{name}-{model}-{data}-alpha{rho}.toml"
            found.append(_experiment(name, model, data, rho, config, about, rows))
    for model, methods in _ACCURACY.items():
        for case, (data, rho) in enumerate(_CASES):
            rows = tuple(Row(label=label, accuracy=cells[case], runs=_runs(label)) for label, cells in methods.items())
            config = f"fedpvr/table3-{model}-{data}-alpha{rho}.toml"
            found.append(_experiment("table3", model, data, rho, config, "accuracy after 80 rounds", rows))
    return found


def _experiment(
    name: str, model: str, data: str, rho: float | None, config: str, about: str, rows: tuple[Row, ...] = ()
) -> Experiment:
    return Experiment(
        paper="fedpvr",
        name=name,
        model=model,
        data=data,
        rho=rho,
        config=config,
        about=about,
        rows=rows,
        measure="round",
        round=80,
    )


def _figure(name: str, model: str, data: str, rho: float | None, about: str, config: str = "") -> Experiment:
    return _experiment(name, model, data, rho, f"fedpvr/{config or name}.toml", about)


EXPERIMENTS = (
    *_tables(),
    _figure("figure2", "vgg11", "cifar10", None, "CKA and drift per layer of FedAvg, Dirichlet 0.1 and 100"),
    *(
        _figure("figure3", model, data, 0.1, "conformal sets after 80 rounds", f"figure3-{model}-{data}")
        for model in ("vgg11", "resnet8")
        for data in ("cifar10", "cifar100")
    ),
    _figure("figure4", "resnet8", "cifar100", 1.0, "drift per layer"),
    _figure("figure5", "vgg11", "cifar100", 1.0, "where variance reduction starts"),
    _figure("figureC2", "resnet8", "cifar100", 1.0, "where variance reduction starts"),
    _figure("figureC3", "vgg11", "cifar100", 0.1, "drift per layer"),
)
