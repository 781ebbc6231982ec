"""FedAvg (McMahan et al., AISTATS 2017): clients train locally, and the server averages their models."""

from typing import Annotated, Any, ClassVar, NamedTuple

from raybcgd.algorithms.api import Algorithm, Displacement, Round, Whole, Work


class FedAvg(Algorithm):
    """FedAvg (McMahan et al., AISTATS 2017): clients train locally, and the server averages their models."""

    name: ClassVar[str] = "fedavg"

    class Server(NamedTuple):
        x: Whole

    class Down(NamedTuple):
        x: Whole

    class Upload(NamedTuple):
        delta: Annotated[Whole, Displacement]

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        x = down.x
        y = work.sgd(x)
        return self.Upload(delta=y - x), mine

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        return self.Server(x=server.x + total.delta)
