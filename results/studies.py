"""The studies: which config, which seeds, and what is tuned."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raybcgd.compare.variants import variant_configs
from raybcgd.config import Config, make_config
from raybcgd.config.files import assign, read_tables

CONFIGS = Path(__file__).parent / "configs"

RATES = (0.01, 0.03, 0.1, 0.3)
MORE_RATES = (0.05, 0.2)
"""With RATES, these are the six rates of the FedBCGD paper."""

_MOMENTUM = ("algorithm.momentum", (0.5, 0.9))
SECOND: dict[str, tuple[str, tuple[float, ...]]] = {
    "FedAvgM": _MOMENTUM,
    "FedAdam": ("algorithm.server_lr", (0.003, 0.03)),
    "FedProx": ("algorithm.mu", (0.1, 1.0)),
    "FedDC": ("algorithm.alpha", (0.001, 0.1)),
    "FedPVR": ("algorithm.local_momentum", (0.0, 0.5)),
    "FedBCGD": _MOMENTUM,
    "FedBCGD+": _MOMENTUM,
    "QSGD+FedBCGD": _MOMENTUM,
    "QSGD+FedBCGD+": _MOMENTUM,
}
"""The second hyper-parameter of a method, and the values to try at the best rate besides the default. Methods without
one try MORE_RATES instead, so that every method gets six points."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A comparison whose results are in one file."""

    name: str
    """The name of the result file."""
    config: str
    """The file in results/configs."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the config, by key."""
    seeds: tuple[int, ...] = (0,)
    tune_rounds: int | None = None
    """Rounds of a tuning run. None: no tuning."""
    rates: tuple[float, ...] = RATES
    """The step sizes that every method tries first."""
    second: bool = True
    """Whether every method then tries two more points."""
    tuned_as: tuple[str, str] | None = None
    """A study and a method whose tuned settings all variants start from."""
    to_optimum: bool = False
    """Also measure the distance to the optimum, for convex problems."""

    @property
    def points(self) -> int:
        """The number of tuning runs per method."""
        return 0 if self.tune_rounds is None else len(self.rates) + (len(MORE_RATES) if self.second else 0)

    def first_points(self) -> list[dict[str, Any]]:
        """Return the settings that every method tries first."""
        return [{"algorithm.lr": rate} for rate in self.rates]

    def second_points(self, label: str, best: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the settings to try next, given the best of the first ones."""
        if not self.second:
            return []
        if label in SECOND:
            key, values = SECOND[label]
            return [{**best, key: value} for value in values]
        return [{"algorithm.lr": rate} for rate in MORE_RATES]

    def variants(self, tuned: Mapping[str, Any] | None = None) -> dict[str, Config]:
        """Return the config of each variant by its label. `tuned` are the settings that `tuned_as` names."""
        return variant_configs(self.base(tuned))

    def base(self, tuned: Mapping[str, Any] | None = None) -> Config:
        """Return the config without the changes of the variants."""
        return make_config(assign(read_tables(CONFIGS / self.config), {**self.settings, **(tuned or {})}))


_TABLE, _RHO = "fashion-mnist-rho{}", (0.6, 0.1)
_MAIN = _TABLE.format(_RHO[0])

TABLES = tuple(
    Study(
        name=_TABLE.format(rho),
        config="fashion-mnist.toml",
        settings={"data.partition.rho": rho},
        seeds=(0, 1, 2),
        tune_rounds=30,
    )
    for rho in _RHO
)
CIFAR10 = tuple(
    Study(
        name=f"cifar10-rho{rho}",
        config="cifar10.toml",
        settings={"data.partition.rho": rho},
        seeds=(0, 1),
        tune_rounds=20,
    )
    for rho in _RHO
)


DEMO = Study(name="demo", config="../../jobs/configs/demo.toml", settings={"engine": "local"}, seeds=(0, 1, 2))
"""`make demo`, in one process: the engine does not change the weights."""


def _ablation(name: str, method: str = "FedBCGD") -> Study:
    """Return a study of one method with the settings that were tuned for the table."""
    settings = {"data.partition.rho": _RHO[0], "algorithm.name": method.lower()}
    return Study(name=name, config=f"{name}.toml", settings=settings, seeds=(0, 1), tuned_as=(_MAIN, method))


STUDIES = (
    DEMO,
    TABLES[0],
    Study(name="block-cyclic", config="block-cyclic.toml", seeds=(0, 1)),
    _ablation("figure5"),
    _ablation("figure4"),
    _ablation("division"),
    _ablation("control", "FedBCGD+"),
    _ablation("figure7"),
    Study(name="optimum", config="optimum.toml", to_optimum=True),
    TABLES[1],
    Study(name="figure8a", config="figure8a.toml", seeds=(0, 1), tune_rounds=20),
    Study(name="figure8b", config="figure8b.toml", seeds=(0, 1), tune_rounds=20),
    *CIFAR10,
)
"""In the order in which they run: a study that uses tuned settings comes after the study that tunes them."""
