"""FedBCGD+ (Liu et al., ACM MM 2024): FedBCGD with client control variates and variance-reduced local steps."""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from raybcgd.algorithms.api import ControlVariate, Displacement, Momentum, OwnBlock, Round, Summed, Task, Whole, Work
from raybcgd.algorithms.fedbcgd import FedBCGD


class FedBCGDPlus(FedBCGD):
    """FedBCGD+ (Liu et al., ACM MM 2024): FedBCGD with client control variates and variance-reduced local steps.

    By default, a client replaces only the coordinates of c_i that it uploaded, so that c stays the mean of the c_i in
    every coordinate. Both sides derive dc = (x - y_T)/(T eta) - c from the uploaded displacement.
    """

    name: ClassVar[str] = "fedbcgd+"
    fixed_batches: ClassVar[bool] = True

    lr: Annotated[float, Field(gt=0)] = 0.03
    """eta, the local step size. The default is below FedBCGD's, because control variates contain old gradients."""
    control: Literal["path", "anchor"] = "path"
    """The new c_i: the mean gradient along the local path, or the full gradient at x as in the paper."""
    commit: Literal["uploaded", "all"] = "uploaded"
    """The coordinates of c_i that a client replaces: the uploaded ones, or all as in the paper."""
    control_upload: Literal["derived", "sent"] = "derived"
    """How the server gets dc: derived from the model upload, or sent by the client as in the paper."""
    shared_control: Literal["1/M", "1/(MN)"] = "1/M"
    """Factor of the sum of dc on the shared block: 1/M, which keeps c the mean of the c_i, or 1/(MN) as in the paper.
    M is the number of clients, N the number of blocks."""

    class Server(NamedTuple):
        x: Whole
        v: Annotated[Whole, Momentum]
        c: Annotated[Whole, ControlVariate]

    class Client(NamedTuple):
        c: Whole

    class Down(NamedTuple):
        x: Whole
        c: Whole

    class SentUpload(NamedTuple):
        delta: OwnBlock
        dc: OwnBlock

    class Terms(NamedTuple):
        delta: Annotated[OwnBlock, Displacement]
        dc: Annotated[OwnBlock, Summed]

    @model_validator(mode="after")
    def _anchor_must_be_sent(self) -> Self:
        if self.control == "anchor" and self.control_upload == "derived":
            raise ValueError('control = "anchor" cannot be derived by the server; set control_upload = "sent"')
        return self

    @property
    def upload_type(self) -> type[Any]:
        return self.SentUpload if self.control_upload == "sent" else self.Upload

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        x, c, ci = down.x, down.c, mine.c
        direction = (lambda g, _: g * work.own) if self.freeze else None
        delta = work.sgd(x, direction, shift=c - ci, variance_reduced=True) - x
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
        dc = total.dc / rnd.clients
        if self.shared_control == "1/(MN)":
            dc[rnd.shared] /= rnd.blocks
        return self.Server(x=server.x + v, v=v, c=server.c + dc)
