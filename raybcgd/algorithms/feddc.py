"""FedDC (Gao et al., CVPR 2022): clients track their drift, and the server averages drift-corrected models."""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from raybcgd.algorithms.api import ControlVariate, Displacement, Round, Summed, Task, Whole, Work
from raybcgd.algorithms.fedavg import FedAvg


class FedDC(FedAvg):
    """FedDC (Gao et al., CVPR 2022): clients track their drift, and the server averages drift-corrected models.

    A client uploads its displacement, which is also its new a_i, and the sum of that and its new drift h_i. In the
    authors' code, the server instead adds the mean drift h of all clients, which it computes from the displacements.
    """

    name: ClassVar[str] = "feddc"
    alpha: Annotated[float, Field(ge=0)] = 0.01
    """Strength of the pull of y + h_i towards x."""
    drift: Literal["sampled", "all"] = "sampled"
    """Clients whose mean drift the server adds: the sampled ones, as in the paper, or all, derived by the server."""

    class Server(NamedTuple):
        x: Whole
        a: Whole
        h: Annotated[Whole, ControlVariate]

    class Client(NamedTuple):
        h: Whole
        a: Whole

    class Down(NamedTuple):
        x: Whole
        a: Whole

    class SentUpload(NamedTuple):
        delta: Annotated[Whole, Displacement]
        drifted: Whole

    class DerivedTerms(NamedTuple):
        delta: Annotated[Whole, Displacement]
        dh: Annotated[Whole, Summed]

    @property
    def upload_type(self) -> type[Any]:
        return self.SentUpload if self.drift == "sampled" else self.Upload

    @property
    def terms_type(self) -> type[Any]:
        return self.SentUpload if self.drift == "sampled" else self.DerivedTerms

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
