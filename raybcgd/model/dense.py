"""Dense models: a multilayer perceptron, and linear models for convex problems."""

from itertools import pairwise
from math import prod

from pydantic import PositiveInt
from torch import nn

from raybcgd.model.initialise import he


def mlp(input_shape: tuple[int, ...], classes: int, hidden: tuple[PositiveInt, ...] = (64,) * 5) -> nn.Module:
    """Multilayer perceptron with one ReLU layer per width in `hidden`.

    On the digits data set (64 inputs), the default has five layers of 4 160 parameters and a head of 650.
    """
    widths = (prod(input_shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return he(nn.Sequential(*layers, nn.Linear(widths[-1], classes)))


def linear(input_shape: tuple[int, ...], classes: int, bias: bool = True) -> nn.Module:
    """One linear layer, initialised to zero as usual for convex problems."""
    layer = nn.Linear(prod(input_shape), classes, bias=bias)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Flatten(), layer)
