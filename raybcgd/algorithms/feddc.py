"""FedDC (Gao et al., CVPR 2022): clients keep track of their drift, and the server averages models with it added."""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from raybcgd.algorithms.api import Round, Summed, Task, Whole, Work
from raybcgd.algorithms.fedavg import FedAvg


class FedDC(FedAvg):
    """FedDC (Gao et al., CVPR 2022): clients keep track of their drift, and the server averages models with it added.

    A client uploads its displacement, which is also its new a_i, and its model with the new drift h_i added. The
    authors' program adds the mean drift of all clients instead, which the server can keep up from the displacements.
    """

    name: ClassVar[str] = "feddc"
    alpha: Annotated[float, Field(ge=0)] = 0.01
    """The pull of y + h_i towards x."""
    drift: Literal["sampled", "all"] = "sampled"
    """Whose drift is added: (as printed) that of the round's clients, or that of all, which need not be sent."""

    class Server(NamedTuple):
        x: Whole
        a: Whole
        h: Whole

    class Client(NamedTuple):
        h: Whole
        a: Whole

    class Down(NamedTuple):
        x: Whole
        a: Whole

    class SentUpload(NamedTuple):
        delta: Whole
        drifted: Whole

    class DerivedTerms(NamedTuple):
        delta: Whole
        dh: Annotated[Whole, Summed]

    @property
    def upload_type(self) -> type[Any]:
        return self.SentUpload if self.drift == "sampled" else self.Upload

    @property
    def terms_type(self) -> type[Any]:
        return self.SentUpload if self.drift == "sampled" else self.DerivedTerms

    def server_init(self, x: Tensor, phases: int = 1) -> Any:
        return self.Server(x=x, a=torch.zeros_like(x), h=torch.zeros_like(x))

    def client_init(self, x: Tensor) -> Any:
        return self.Client(h=torch.zeros_like(x), a=torch.zeros_like(x))

    def broadcast(self, server: Any, rnd: Round) -> Any:
        return self.Down(x=server.x, a=server.a)

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        x, a, h, ai = down.x, down.a, mine.h, mine.a
        bias = work.mean_gradient(a - ai)  # (a_i - a)/(eta T)
        delta = work.sgd(x, lambda g, y: g + self.alpha * (y + h - x) + bias) - x
        if self.drift == "all":
            return self.Upload(delta=delta), mine
        return self.SentUpload(delta=delta, drifted=delta + (h + delta)), mine

    def terms(self, sent: Any, down: Any, task: Task) -> Any:
        return sent if self.drift == "sampled" else self.DerivedTerms(delta=sent.delta, dh=sent.delta)

    def settle(self, mine: Any, terms: Any) -> Any:
        return self.Client(h=mine.h + terms.delta, a=terms.delta)

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        if self.drift == "sampled":
            return self.Server(x=server.x + total.drifted, a=total.delta, h=server.h)
        h = server.h + total.dh / rnd.clients
        return self.Server(x=server.x + total.delta + h, a=total.delta, h=h)
