"""`[algorithm]`: the settings that all methods share, and the built-in methods."""

from typing import Annotated

from pydantic import Field

from raybcgd.registry import Registry
from raybcgd.section import Section

_HERE = "raybcgd.algorithms"

ALGORITHMS = Registry(
    "algorithm.name",
    {
        "fedavg": f"{_HERE}.fedavg:FedAvg",
        "fedavgm": f"{_HERE}.fedavgm:FedAvgM",
        "fedadam": f"{_HERE}.fedadam:FedAdam",
        "fedprox": f"{_HERE}.fedprox:FedProx",
        "scaffold": f"{_HERE}.scaffold:Scaffold",
        "feddc": f"{_HERE}.feddc:FedDC",
        "fedpvr": f"{_HERE}.fedpvr:FedPVR",
        "fedbcgd": f"{_HERE}.fedbcgd:FedBCGD",
        "fedbcgd+": f"{_HERE}.fedbcgd_plus:FedBCGDPlus",
        "mm_psgd": f"{_HERE}.mm_psgd:MMPSGD",
        "mc_psgd": f"{_HERE}.mc_psgd:MCPSGD",
        "sgd": f"{_HERE}.centralised:Centralised",
    },
    base=f"{_HERE}.api:Algorithm",
)
DEFAULT_ALGORITHM = "fedbcgd+"


class AlgorithmConfig(Section):
    """Hyper-parameters that all methods share."""

    lr: Annotated[float, Field(gt=0)] = 0.1
    """eta, the local step size."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 0.998
    """The step size of round r is lr * lr_decay**r."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.001
    """Coefficient of the L2 regularisation in the local gradient."""
