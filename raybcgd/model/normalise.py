"""The choice between group and batch normalisation."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import nn

from raybcgd.errors import ConfigError

Norm = Literal["group", "batch", "none"]


def norm_layer(norm: Norm, groups: int) -> Callable[[int], nn.Module]:
    """A norm layer by its number of channels.

    Batch statistics of clients with few labels disagree, so group normalisation is the usual choice in federated
    learning; two groups a layer as in Reddi et al. (ICLR 2021).
    """
    if norm == "group":
        return partial(_group_norm, groups)
    return nn.BatchNorm2d if norm == "batch" else _identity


def _group_norm(groups: int, channels: int) -> nn.Module:
    if channels % groups:
        raise ConfigError(
            f"model.options.groups = {groups} does not divide a layer of {channels} channels; choose a divisor of it"
        )
    return nn.GroupNorm(groups, channels)


def _identity(channels: int) -> nn.Module:
    return nn.Identity()
