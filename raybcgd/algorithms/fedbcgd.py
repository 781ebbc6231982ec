"""FedBCGD (Liu et al., ACM MM 2024): clients train the whole model and upload one block and the shared block."""

from typing import Annotated, Any, ClassVar, NamedTuple

from raybcgd.algorithms.api import Displacement, OwnBlock, Work
from raybcgd.algorithms.fedavgm import FedAvgM


class FedBCGD(FedAvgM):
    """FedBCGD (Liu et al., ACM MM 2024): clients train the whole model and upload one block and the shared block.

    The server rule is FedAvgM's; each coordinate is averaged over the clients that sent it. With one block and no
    shared block, the method is FedAvgM. Ablations: `freeze`, `momentum = 0`, and `blocks.shared = "none"`.
    """

    name: ClassVar[str] = "fedbcgd"
    freeze: bool = False
    """Train only the uploaded coordinates."""

    class Upload(NamedTuple):
        delta: Annotated[OwnBlock, Displacement]

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        x = down.x
        y = work.sgd(x, (lambda g, _: g * work.own) if self.freeze else None)
        return self.Upload(delta=y - x), mine
