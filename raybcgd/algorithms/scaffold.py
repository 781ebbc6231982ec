"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates remove each client's own bias from its steps."""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from raybcgd.algorithms.api import ControlVariate, Displacement, Round, Summed, Task, Whole, Work
from raybcgd.algorithms.fedavg import FedAvg


class Scaffold(FedAvg):
    """SCAFFOLD (Karimireddy et al., ICML 2020): control variates remove each client's own bias from its steps.

    c is the mean of all c_i. By default, both sides derive dc = (x - y_T)/(T eta) - c from the uploaded displacement,
    which halves the paper's upload.
    """

    name: ClassVar[str] = "scaffold"
    server_lr: Annotated[float, Field(gt=0)] = 1.0
    """eta_g, the server's step size."""
    control_upload: Literal["derived", "sent"] = "derived"
    """How the server gets dc: derived from the model upload, or sent by the client as in the paper."""

    class Server(NamedTuple):
        x: Whole
        c: Annotated[Whole, ControlVariate]

    class Client(NamedTuple):
        c: Whole

    class Down(NamedTuple):
        x: Whole
        c: Whole

    class SentUpload(NamedTuple):
        delta: Whole
        dc: Whole

    class Terms(NamedTuple):
        delta: Annotated[Whole, Displacement]
        dc: Annotated[Whole, Summed]

    @property
    def upload_type(self) -> type[Any]:
        return self.SentUpload if self.control_upload == "sent" else self.Upload

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        x, c, ci = down.x, down.c, mine.c
        delta = work.sgd(x, shift=c - ci) - x
        if self.control_upload == "derived":
            return self.Upload(delta=delta), mine
        return self.SentUpload(delta=delta, dc=work.mean_gradient(delta) - c), mine

    def terms(self, sent: Any, down: Any, task: Task) -> Any:
        dc = sent.dc if self.control_upload == "sent" else task.mean_gradient(sent.delta) - down.c
        return self.Terms(delta=sent.delta, dc=dc)

    def settle(self, mine: Any, terms: Any) -> Any:
        return self.Client(c=mine.c + terms.dc)

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        return self.Server(x=server.x + self.server_lr * total.delta, c=server.c + total.dc / rnd.clients)
