"""`[algorithm]`: the settings that all methods share, and the built-in methods."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from raybcgd.registry import Registry
from raybcgd.section import Section

_HERE = "raybcgd.algorithms"

ALGORITHMS = Registry(
    "algorithm.name",
    {
        "fedavg": f"{_HERE}.fedavg:FedAvg",
        "fedavgm": f"{_HERE}.fedavgm:FedAvgM",
        "fedadam": f"{_HERE}.fedadam:FedAdam",
        "fedprox": f"{_HERE}.fedprox:FedProx",
        "scaffold": f"{_HERE}.scaffold:Scaffold",
        "feddc": f"{_HERE}.feddc:FedDC",
        "fedpvr": f"{_HERE}.fedpvr:FedPVR",
        "fedbcgd": f"{_HERE}.fedbcgd:FedBCGD",
        "fedbcgd+": f"{_HERE}.fedbcgd_plus:FedBCGDPlus",
        "mm_psgd": f"{_HERE}.mm_psgd:MMPSGD",
        "mc_psgd": f"{_HERE}.mc_psgd:MCPSGD",
        "sgd": f"{_HERE}.centralised:Centralised",
    },
    base=f"{_HERE}.api:Algorithm",
)
DEFAULT_ALGORITHM = "fedbcgd+"


class AlgorithmConfig(Section):
    """Hyper-parameters that all methods share."""

    lr: Annotated[float, Field(gt=0)] = 0.1
    """eta, the local step size."""
    lr_schedule: Literal["exponential", "multistep", "cosine", "constant"] = "exponential"
    """The step size of round r. exponential: lr * lr_decay**r. multistep: lr times lr_decay for each milestone reached.
    cosine: lr * (1 + cos(pi r / lr_rounds)) / 2. constant: lr."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 0.998
    """Factor per round (exponential) or per milestone (multistep)."""
    lr_milestones: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """With lr_schedule = "multistep": the rounds at which the step size shrinks."""
    lr_rounds: Annotated[int, Field(ge=1)] | None = None
    """With lr_schedule = "cosine": the length of the schedule. Later rounds use its last step size."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.001
    """Coefficient of the L2 regularisation in the local gradient."""

    @model_validator(mode="after")
    def _complete_schedule(self) -> Self:
        if self.lr_schedule == "multistep" and not self.lr_milestones:
            raise ValueError('lr_schedule = "multistep" needs lr_milestones; list the rounds at which lr shrinks')
        if self.lr_schedule == "cosine" and self.lr_rounds is None:
            raise ValueError('lr_schedule = "cosine" needs lr_rounds; set it to the number of rounds')
        return self
