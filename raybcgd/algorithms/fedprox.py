"""FedProx (Li et al., MLSys 2020): FedAvg with a proximal term mu/2 |y - x|^2 in the local loss."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from raybcgd.algorithms.api import Work
from raybcgd.algorithms.fedavg import FedAvg


class FedProx(FedAvg):
    """FedProx (Li et al., MLSys 2020): FedAvg with a proximal term mu/2 |y - x|^2 in the local loss."""

    name: ClassVar[str] = "fedprox"
    mu: Annotated[float, Field(ge=0)] = 0.01
    """Strength of the proximal term."""

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        x = down.x
        y = work.sgd(x, lambda g, y: g + self.mu * (y - x))
        return self.Upload(delta=y - x), mine
