"""FedAdam (Reddi et al., ICLR 2021): the server takes the clients' mean displacement as a gradient for Adam."""

from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from raybcgd.algorithms.api import Round, Whole
from raybcgd.algorithms.fedavg import FedAvg


class FedAdam(FedAvg):
    """FedAdam (Reddi et al., ICLR 2021): the server takes the clients' mean displacement as a gradient for Adam.

    As in the paper there is no bias correction.
    """

    name: ClassVar[str] = "fedadam"
    server_lr: Annotated[float, Field(gt=0)] = 0.01
    """eta_g, the server's step size."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the mean displacement."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay of the mean squared displacement."""
    tau: Annotated[float, Field(gt=0)] = 0.001
    """The degree of adaptivity, added to the root of the mean square."""

    class Server(NamedTuple):
        x: Whole
        m: Whole
        u: Whole

    def server_init(self, x: Tensor, phases: int = 1) -> Any:
        return self.Server(x=x, m=torch.zeros_like(x), u=torch.zeros_like(x))

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        m = self.beta1 * server.m + (1 - self.beta1) * total.delta
        u = self.beta2 * server.u + (1 - self.beta2) * total.delta**2
        return self.Server(x=server.x + self.server_lr * m / (u.sqrt() + self.tau), m=m, u=u)
