"""MC-PSGD (Ding et al., 2020): MM-PSGD plus a separate chain per data phase; the better of the two is averaged."""

from typing import Annotated, Any, ClassVar, NamedTuple

from torch import Tensor

from raybcgd.algorithms.api import Displacement, PerPhase, PhaseCounts, Round, Whole, Work
from raybcgd.algorithms.mm_psgd import MMPSGD


class MCPSGD(MMPSGD):
    """MC-PSGD (Ding et al., 2020): MM-PSGD plus a separate chain per data phase; the better of the two is averaged.

    Clients train the mixed chain x and the chain z of the current phase on the same batches. Then they report the loss
    of the new x and the new z on their data. With one phase, the two chains are equal and the method is MM-PSGD.
    """

    name: ClassVar[str] = "mc_psgd"

    class Server(NamedTuple):
        x: Whole
        chains: PerPhase
        predictors: PerPhase
        seen: PhaseCounts

    class Down(NamedTuple):
        x: Whole
        z: Whole

    class Upload(NamedTuple):
        delta: Annotated[Whole, Displacement]
        delta_z: Whole

    def server_init(self, x: Tensor, phases: int = 1) -> Any:
        return super().server_init(x, phases)._replace(chains=x.repeat(phases, 1))

    def broadcast(self, server: Any, rnd: Round) -> Any:
        return self.Down(x=server.x, z=server.chains[rnd.data_phase])

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        x, z = down.x, down.z
        w, y = work.sgd(z), work.sgd(x)
        return self.Upload(delta=y - x, delta_z=w - z), mine

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        chains = server.chains.clone()
        chains[rnd.data_phase] += total.delta_z
        return server._replace(x=server.x + total.delta, chains=chains)

    def candidates(self, server: Any, rnd: Round) -> tuple[Tensor, ...]:
        return server.x, server.chains[rnd.data_phase]

    def choose(self, server: Any, losses: tuple[float, ...], rnd: Round) -> Any:
        x, z = self.candidates(server, rnd)
        better = x if losses[0] <= losses[1] else z
        predictors, seen = self.update_predictor(server, better, rnd.data_phase)
        return server._replace(predictors=predictors, seen=seen)
