"""A workload as a file that needs only torch: the data of all clients, the initial model and the local settings.

All contestants except raybcgd read it, so they train the same model on the same samples with the same step size.
"""

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn

EVALUATED_CLIENTS = 20


@dataclass(frozen=True)
class Bundle:
    """A FedAvg workload. Inputs are normalised; all clients have the same number of samples."""

    inputs: Tensor
    """(clients, samples, *shape), float32."""
    targets: Tensor
    """(clients, samples)."""
    module: nn.Module
    """The initial model."""
    cohort: int
    """Clients per round."""
    batch: int
    lr: float
    weight_decay: float

    @property
    def clients(self) -> int:
        return len(self.targets)

    @property
    def convolutional(self) -> bool:
        """Whether channels_last makes this model faster."""
        return any(isinstance(child, nn.Conv2d) for child in self.module.modules())

    @torch.no_grad()
    def loss(self, module: nn.Module) -> float:
        """Return the loss of a model on the samples of the first clients, to check that a contestant trains."""
        inputs, targets = self.inputs[:EVALUATED_CLIENTS].flatten(0, 1), self.targets[:EVALUATED_CLIENTS].flatten()
        return float(nn.functional.cross_entropy(module(inputs), targets))

    def save(self, path: Path) -> None:
        """Write the bundle to a file."""
        torch.save({field.name: getattr(self, field.name) for field in fields(self)}, path)

    @classmethod
    def load(cls, path: str | Path) -> "Bundle":
        """Read a bundle that this benchmark wrote."""
        return cls(**torch.load(path, weights_only=False))  # the file contains a module
