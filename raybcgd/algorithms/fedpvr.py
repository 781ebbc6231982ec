"""FedPVR (Li et al., CVPR 2023): SCAFFOLD on the last layers, SGD with momentum on the others."""

from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from pydantic import Field

from raybcgd.algorithms.api import SharedBlock, Task, Whole, Work
from raybcgd.algorithms.scaffold import Scaffold


class FedPVR(Scaffold):
    """FedPVR (Li et al., CVPR 2023): SCAFFOLD on the last layers, SGD with momentum on the others.

    The last layers are the shared block: `blocks.shared = "all"` gives SCAFFOLD, "none" gives FedAvg with local
    momentum. Outside the shared block, c and every c_i are zero.
    """

    name: ClassVar[str] = "fedpvr"
    local_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of the local steps on the other layers."""

    class Down(NamedTuple):
        x: Whole
        c: SharedBlock

    class SentUpload(NamedTuple):
        delta: Whole
        dc: SharedBlock

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        x, c, ci, p = down.x, down.c, mine.c, work.shared
        delta = work.sgd(x, shift=c - ci, momentum=self.local_momentum * (1 - p)) - x
        if self.control_upload == "derived":
            return self.Upload(delta=delta), mine
        return self.SentUpload(delta=delta, dc=work.mean_gradient(delta) - c), mine

    def terms(self, sent: Any, down: Any, task: Task) -> Any:
        s, dc = task.shared, torch.zeros_like(sent.delta)
        dc[..., s] = sent.dc if self.control_upload == "sent" else (task.mean_gradient(sent.delta) - down.c)[..., s]
        return self.Terms(delta=sent.delta, dc=dc)
