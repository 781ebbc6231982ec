"""The methods, by the name that a config gives them."""

from raybcgd.algorithms.api import Algorithm
from raybcgd.algorithms.centralised import Centralised
from raybcgd.algorithms.fedadam import FedAdam
from raybcgd.algorithms.fedavg import FedAvg
from raybcgd.algorithms.fedavgm import FedAvgM
from raybcgd.algorithms.fedbcgd import FedBCGD
from raybcgd.algorithms.fedbcgd_plus import FedBCGDPlus
from raybcgd.algorithms.feddc import FedDC
from raybcgd.algorithms.fedprox import FedProx
from raybcgd.algorithms.fedpvr import FedPVR
from raybcgd.algorithms.mc_psgd import MCPSGD
from raybcgd.algorithms.mm_psgd import MMPSGD
from raybcgd.algorithms.scaffold import Scaffold

METHODS: dict[str, type[Algorithm]] = {
    method.name: method
    for method in (
        FedAvg,
        FedAvgM,
        FedAdam,
        FedProx,
        Scaffold,
        FedDC,
        FedPVR,
        FedBCGD,
        FedBCGDPlus,
        MMPSGD,
        MCPSGD,
        Centralised,
    )
}

__all__ = [
    "MCPSGD",
    "METHODS",
    "MMPSGD",
    "Algorithm",
    "Centralised",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBCGD",
    "FedBCGDPlus",
    "FedDC",
    "FedPVR",
    "FedProx",
    "Scaffold",
]
