"""MM-PSGD (Ding et al., 2020): SGD through block-cyclic data, and a mean of its models for every data phase."""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from raybcgd.algorithms.api import Round, Whole
from raybcgd.algorithms.fedavg import FedAvg


class MMPSGD(FedAvg):
    """MM-PSGD (Ding et al., 2020): SGD through block-cyclic data, and a mean of its models for every data phase.

    The chain x is FedAvg's. A phase's predictor, which is judged on that phase's data, is the mean of the x after its
    rounds; before its first round it is the initial model.
    """

    name: ClassVar[str] = "mm_psgd"
    averaging: Literal["mean", "exponential"] = "mean"
    """A predictor's weights: every model the same, or newer ones more, as in the paper's experiments."""
    base: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """With averaging = "exponential": a model's weight shrinks by this factor with every later round of its phase."""

    class Server(NamedTuple):
        x: Whole
        predictors: Whole  # [D, d]
        seen: Whole  # [D], rounds of each phase so far

    def server_init(self, x: Tensor, phases: int = 1) -> Any:
        return self.Server(x=x, predictors=x.repeat(phases, 1), seen=torch.zeros(phases))

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        x = server.x + total.delta
        predictors, seen = self.feed(server, x, rnd.phase)
        return self.Server(x=x, predictors=predictors, seen=seen)

    def feed(self, server: Any, model: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The predictors after phase m has seen another model, and how many each has seen."""
        predictors, seen = server.predictors.clone(), server.seen.clone()
        seen[m] += 1
        n = float(seen[m])
        weight = 1 - self.base if self.averaging == "exponential" and n > 1 else 1 / n
        predictors[m] += weight * (model - predictors[m])
        return predictors, seen

    def models(self, server: Any) -> tuple[Tensor, ...]:
        return tuple(server.predictors)
