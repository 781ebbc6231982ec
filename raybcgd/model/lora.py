"""LoRA (Hu et al., ICLR 2022): a frozen weight W plus a trainable low-rank product."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Target = Literal["attention", "mlp"]


class LowRank(nn.Module):
    """W -> W + alpha/rank * up @ down. Initially the identity, because `up` is zero."""

    def __init__(self, weight: Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.down = nn.Parameter(torch.empty(rank, columns).normal_(std=columns**-0.5))
        self.up = nn.Parameter(torch.zeros(rows, rank))
        self.scale = alpha / rank

    def forward(self, weight: Tensor) -> Tensor:
        """Return the adapted weight."""
        return weight + self.scale * (self.up @ self.down)


def add_lora(model: nn.Module, rank: int, alpha: float, targets: tuple[Target, ...]) -> None:
    """Freeze torchvision's vision transformer except its head, and add adapters to its attention or MLP weights.

    The stacked query, key and value weights of an attention layer share one adapter.
    """
    model.requires_grad_(False)
    model.get_submodule("heads").requires_grad_(True)
    for child in list(model.get_submodule("encoder").modules()):
        # The stacked weight is not the weight of a submodule, so only a parametrisation can adapt it.
        if isinstance(child, nn.MultiheadAttention) and "attention" in targets:
            parametrize.register_parametrization(child, "in_proj_weight", LowRank(child.in_proj_weight, rank, alpha))
        elif type(child) is nn.Linear and "mlp" in targets:
            parametrize.register_parametrization(child, "weight", LowRank(child.weight, rank, alpha))
