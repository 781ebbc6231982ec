"""The methods. `raybcgd methods` lists them; settings.py maps their names to classes."""

from typing import TYPE_CHECKING

from raybcgd.algorithms.settings import ALGORITHMS
from raybcgd.lazy import lazy

if TYPE_CHECKING:
    from raybcgd.algorithms.api import Algorithm as Algorithm
    from raybcgd.algorithms.centralised import Centralised as Centralised
    from raybcgd.algorithms.fedadam import FedAdam as FedAdam
    from raybcgd.algorithms.fedavg import FedAvg as FedAvg
    from raybcgd.algorithms.fedavgm import FedAvgM as FedAvgM
    from raybcgd.algorithms.fedbcgd import FedBCGD as FedBCGD
    from raybcgd.algorithms.fedbcgd_plus import FedBCGDPlus as FedBCGDPlus
    from raybcgd.algorithms.feddc import FedDC as FedDC
    from raybcgd.algorithms.fedprox import FedProx as FedProx
    from raybcgd.algorithms.fedpvr import FedPVR as FedPVR
    from raybcgd.algorithms.mc_psgd import MCPSGD as MCPSGD
    from raybcgd.algorithms.mm_psgd import MMPSGD as MMPSGD
    from raybcgd.algorithms.scaffold import Scaffold as Scaffold
else:
    __getattr__, __dir__ = lazy(__name__, {"raybcgd.algorithms.api": ["Algorithm"], **ALGORITHMS.homes()})
