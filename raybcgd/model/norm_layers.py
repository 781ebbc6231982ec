"""Group normalisation, batch normalisation or none."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import nn

from raybcgd.errors import ConfigError

Norm = Literal["group", "batch", "none"]


def norm_layer(norm: Norm, groups: int) -> Callable[[int], nn.Module]:
    """Return a function that takes the number of channels and returns a norm layer.

    Group normalisation is the usual choice in federated learning, because batch statistics differ between clients
    that hold few labels. Reddi et al. (ICLR 2021) use two groups per layer.
    """
    if norm == "group":
        return partial(_group_norm, groups)
    return nn.BatchNorm2d if norm == "batch" else nn.Identity


def _group_norm(groups: int, channels: int) -> nn.Module:
    if channels % groups:
        raise ConfigError(f"model.options.groups = {groups} does not divide {channels} channels; choose a divisor")
    return nn.GroupNorm(groups, channels)
