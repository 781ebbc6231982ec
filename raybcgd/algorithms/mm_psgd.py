"""MM-PSGD (Ding et al., 2020): SGD on block-cyclic data, with an averaged model per data phase."""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field
from torch import Tensor

from raybcgd.algorithms.api import PerPhase, PhaseCounts, Round, Whole
from raybcgd.algorithms.fedavg import FedAvg


class MMPSGD(FedAvg):
    """MM-PSGD (Ding et al., 2020): SGD on block-cyclic data, with an averaged model per data phase.

    The chain x is that of FedAvg. The predictor of a phase is the average of x over the phase's rounds, and is
    evaluated on the phase's test data. Before the phase's first round, it is the initial model.
    """

    name: ClassVar[str] = "mm_psgd"
    averaging: Literal["mean", "exponential"] = "mean"
    """Weights of a predictor's models: all equal, or larger for newer ones as in the paper's experiments."""
    base: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """With averaging = "exponential": the factor by which a model's weight shrinks at each later round of its phase."""

    class Server(NamedTuple):
        x: Whole
        predictors: PerPhase
        seen: PhaseCounts

    def server_init(self, x: Tensor, phases: int = 1) -> Any:
        return super().server_init(x, phases)._replace(predictors=x.repeat(phases, 1))

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        x = server.x + total.delta
        predictors, seen = self.update_predictor(server, x, rnd.data_phase)
        return self.Server(x=x, predictors=predictors, seen=seen)

    def update_predictor(self, server: Any, model: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """Add a model to the predictor of phase m; return all predictors, and the number of models in each."""
        predictors, seen = server.predictors.clone(), server.seen.clone()
        seen[m] += 1
        n = float(seen[m])
        weight = 1 - self.base if self.averaging == "exponential" and n > 1 else 1 / n
        predictors[m] += weight * (model - predictors[m])
        return predictors, seen

    def models(self, server: Any) -> tuple[Tensor, ...]:
        return tuple(server.predictors)
