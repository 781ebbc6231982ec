"""FedBCGD+ (Liu et al., ACM MM 2024): FedBCGD with client control variates and variance-reduced local steps."""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from raybcgd.algorithms.api import OwnBlock, Round, Summed, Task, Whole, Work
from raybcgd.algorithms.fedbcgd import FedBCGD


class FedBCGDPlus(FedBCGD):
    """FedBCGD+ (Liu et al., ACM MM 2024): FedBCGD with client control variates and variance-reduced local steps.

    c stays the mean of the c_i in every coordinate, because a client commits only what the server has heard of.
    With path control dc = (x - y_T)/(T eta) - c follows from what was transmitted, so it need not travel.
    """

    name: ClassVar[str] = "fedbcgd+"
    fixed_batches: ClassVar[bool] = True

    lr: Annotated[float, Field(gt=0)] = 0.03
    """eta, the local step size: control variates carry old gradients, and want a smaller one than FedBCGD does."""
    control: Literal["path", "anchor"] = "path"
    """New c_i: the mean gradient along the local path, or (as printed) the full gradient at x."""
    commit: Literal["uploaded", "all"] = "uploaded"
    """The coordinates of c_i that a client replaces: what it uploaded, or (as printed) all."""
    control_upload: Literal["derived", "sent"] = "derived"
    """Whether both sides derive dc from the model upload, or (as printed) the client sends it."""

    class Server(NamedTuple):
        x: Whole
        v: Whole
        c: Whole

    class Client(NamedTuple):
        c: Whole

    class Down(NamedTuple):
        x: Whole
        c: Whole

    class SentUpload(NamedTuple):
        delta: OwnBlock
        dc: OwnBlock

    class Terms(NamedTuple):
        delta: OwnBlock
        dc: Annotated[OwnBlock, Summed]

    @model_validator(mode="after")
    def _anchor_must_be_sent(self) -> Self:
        if self.control == "anchor" and self.control_upload == "derived":
            raise ValueError('control = "anchor" cannot be derived by the server; set control_upload = "sent"')
        return self

    @property
    def upload_type(self) -> type[Any]:
        return self.SentUpload if self.control_upload == "sent" else self.Upload

    def server_init(self, x: Tensor, phases: int = 1) -> Any:
        return self.Server(x=x, v=torch.zeros_like(x), c=torch.zeros_like(x))

    def client_init(self, x: Tensor) -> Any:
        return self.Client(c=torch.zeros_like(x))

    def broadcast(self, server: Any, rnd: Round) -> Any:
        return self.Down(x=server.x, c=server.c)

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        x, c, ci = down.x, down.c, mine.c
        drift = c - ci
        y = work.sgd(x, lambda g, _: (g + drift) * work.own if self.freeze else g + drift, variance_reduced=True)
        delta = y - x
        if self.control_upload == "derived" and self.commit == "uploaded":
            return self.Upload(delta=delta), mine
        dc = work.mean_gradient(delta) - c if self.control == "path" else work.full_gradient(x) - ci
        upload = self.SentUpload(delta=delta, dc=dc) if self.control_upload == "sent" else self.Upload(delta=delta)
        return upload, self.Client(c=ci + dc) if self.commit == "all" else mine

    def terms(self, sent: Any, down: Any, task: Task) -> Any:
        dc = sent.dc if self.control_upload == "sent" else task.mean_gradient(sent.delta) - down.c
        return self.Terms(delta=sent.delta, dc=dc)

    def settle(self, mine: Any, terms: Any) -> Any:
        return self.Client(c=mine.c + terms.dc) if self.commit == "uploaded" else mine

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        v = self.momentum * server.v + total.delta
        return self.Server(x=server.x + v, v=v, c=server.c + total.dc / rnd.clients)
