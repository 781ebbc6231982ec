"""FedDC (Gao et al., CVPR 2022): clients keep track of their drift, and the server averages models with it added."""

from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from raybcgd.algorithms.api import Round, Whole, Work
from raybcgd.algorithms.fedavg import FedAvg


class FedDC(FedAvg):
    """FedDC (Gao et al., CVPR 2022): clients keep track of their drift, and the server averages models with it added.

    A client uploads its displacement, which is also its new a_i, and its model with the new drift h_i added.
    """

    name: ClassVar[str] = "feddc"
    alpha: Annotated[float, Field(ge=0)] = 0.01
    """The pull of y + h_i towards x."""

    class Server(NamedTuple):
        x: Whole
        a: Whole

    class Client(NamedTuple):
        h: Whole
        a: Whole

    class Down(NamedTuple):
        x: Whole
        a: Whole

    class Upload(NamedTuple):
        delta: Whole
        drifted: Whole

    def server_init(self, x: Tensor, phases: int = 1) -> Any:
        return self.Server(x=x, a=torch.zeros_like(x))

    def client_init(self, x: Tensor) -> Any:
        return self.Client(h=torch.zeros_like(x), a=torch.zeros_like(x))

    def broadcast(self, server: Any, rnd: Round) -> Any:
        return self.Down(x=server.x, a=server.a)

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        x, a, h, ai = down.x, down.a, mine.h, mine.a
        bias = work.mean_gradient(a - ai)  # (a_i - a)/(eta T)
        delta = work.sgd(x, lambda g, y: g + self.alpha * (y + h - x) + bias) - x
        h_new = h + delta
        return self.Upload(delta=delta, drifted=delta + h_new), self.Client(h=h_new, a=delta)

    def settle(self, mine: Any, terms: Any) -> Any:
        return self.Client(h=mine.h, a=terms.delta)

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        return self.Server(x=server.x + total.drifted, a=total.delta)
