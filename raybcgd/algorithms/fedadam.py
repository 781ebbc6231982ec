"""FedAdam (Reddi et al., ICLR 2021): the server uses the clients' mean displacement as a gradient for Adam."""

from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from raybcgd.algorithms.api import Momentum, Round, Whole
from raybcgd.algorithms.fedavg import FedAvg


class FedAdam(FedAvg):
    """FedAdam (Reddi et al., ICLR 2021): the server uses the clients' mean displacement as a gradient for Adam.

    As in the paper, there is no bias correction.
    """

    name: ClassVar[str] = "fedadam"
    server_lr: Annotated[float, Field(gt=0)] = 0.01
    """eta_g, the server's step size."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay rate of the mean displacement."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay rate of the mean squared displacement."""
    tau: Annotated[float, Field(gt=0)] = 0.001
    """Degree of adaptivity, added to the root of the mean square."""

    class Server(NamedTuple):
        x: Whole
        m: Annotated[Whole, Momentum]
        u: Whole

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        m = self.beta1 * server.m + (1 - self.beta1) * total.delta
        u = self.beta2 * server.u + (1 - self.beta2) * total.delta**2
        return self.Server(x=server.x + self.server_lr * m / (u.sqrt() + self.tau), m=m, u=u)
