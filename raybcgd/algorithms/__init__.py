"""The methods, by the name that a config gives them."""

from raybcgd.algorithms.api import Algorithm
from raybcgd.algorithms.fedavg import FedAvg
from raybcgd.algorithms.fedavgm import FedAvgM
from raybcgd.algorithms.fedbcgd import FedBCGD
from raybcgd.algorithms.fedbcgd_plus import FedBCGDPlus

METHODS: dict[str, type[Algorithm]] = {method.name: method for method in (FedAvg, FedAvgM, FedBCGD, FedBCGDPlus)}

__all__ = ["METHODS", "Algorithm", "FedAvg", "FedAvgM", "FedBCGD", "FedBCGDPlus"]
