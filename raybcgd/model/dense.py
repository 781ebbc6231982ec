"""Models without convolutions: the multilayer perceptron and the linear ones of the convex experiments."""

from itertools import pairwise
from math import prod

from pydantic import PositiveInt
from torch import nn

from raybcgd.model.initialise import he


def mlp(input_shape: tuple[int, ...], classes: int, hidden: tuple[PositiveInt, ...] = (64,) * 5) -> nn.Module:
    """A perceptron with ReLU layers of the widths in `hidden`.

    On the embedded digits (64 inputs) the default is five blocks of 4 160 coordinates and a head of 650.
    """
    widths = (prod(input_shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return he(nn.Sequential(*layers, nn.Linear(widths[-1], classes)))


def linear(input_shape: tuple[int, ...], classes: int, bias: bool = True) -> nn.Module:
    """One linear layer, started at zero as is usual for a convex problem."""
    layer = nn.Linear(prod(input_shape), classes, bias=bias)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Flatten(), layer)
