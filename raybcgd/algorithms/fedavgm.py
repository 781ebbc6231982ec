"""FedAvgM (Hsu et al., 2019): FedAvg with momentum on the server."""

from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from raybcgd.algorithms.api import Momentum, Round, Whole
from raybcgd.algorithms.fedavg import FedAvg


class FedAvgM(FedAvg):
    """FedAvgM (Hsu et al., 2019): FedAvg with momentum on the server."""

    name: ClassVar[str] = "fedavgm"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.8
    """lambda, the server's momentum."""

    class Server(NamedTuple):
        x: Whole
        v: Annotated[Whole, Momentum]

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        v = self.momentum * server.v + total.delta
        return self.Server(x=server.x + v, v=v)
