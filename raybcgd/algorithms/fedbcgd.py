"""FedBCGD (Liu et al., ACM MM 2024): every client trains the whole model and uploads one block and the shared one."""

from typing import Any, ClassVar, NamedTuple

from raybcgd.algorithms.api import OwnBlock, Work
from raybcgd.algorithms.fedavgm import FedAvgM


class FedBCGD(FedAvgM):
    """FedBCGD (Liu et al., ACM MM 2024): every client trains the whole model and uploads one block and the shared one.

    The server's rule is FedAvgM's, block by block: a coordinate's mean is over the clients that sent it. With one
    block and no shared block it is FedAvgM. The ablations: `freeze`, `momentum = 0`, and `blocks.shared = "none"`.
    """

    name: ClassVar[str] = "fedbcgd"
    freeze: bool = False
    """Train only the coordinates that will be uploaded."""

    class Upload(NamedTuple):
        delta: OwnBlock

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        x = down.x
        y = work.sgd(x, (lambda g, _: g * work.own) if self.freeze else None)
        return self.Upload(delta=y - x), mine
