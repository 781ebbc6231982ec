"""VGG for small images (Simonyan and Zisserman, ICLR 2015), with the linear layers of the FedBCGD and FedPVR papers.

Unlike torchvision's VGG, FedBCGD's has no fifth pooling layer: a 32x32 image becomes 2x2 positions of 512 features, the
paper's 2 048 inputs to the linear layers. It has no dropout. FedPVR's VGG-11 has the fifth pooling layer and dropout.
"""

from collections import OrderedDict
from itertools import pairwise
from typing import Annotated

from pydantic import Field, PositiveInt
from torch import nn

from raybcgd.model.convolutional import image_shape
from raybcgd.model.initialise import he
from raybcgd.model.norm_layers import Norm, norm_layer

_VGG11 = (64, 128, 256, 256, 512, 512, 512, 512)
# Per model: channels of the convolutions, which of them (from 1) follow a pool, widths of the hidden linear layers, and
# height and width of the features that the linear layers see.
_VGG = {
    "vgg11": (_VGG11, (2, 3, 5, 7), (1024, 1024), 2),
    "vgg11-fedpvr": (_VGG11, (2, 3, 5, 7), (512, 512), 1),
    "vgg19": ((64, 64, 128, 128, *(256,) * 4, *(512,) * 8), (3, 5, 9, 13), (512, 256), 2),
}


def vgg11(input_shape: tuple[int, ...], classes: int, norm: Norm = "none", groups: PositiveInt = 2) -> nn.Module:
    """VGG-11: eight convolutions, then linear layers of 2048-1024-1024-classes."""
    return _vgg("vgg11", input_shape, classes, norm, groups)


def vgg11_fedpvr(
    input_shape: tuple[int, ...],
    classes: int,
    norm: Norm = "none",
    groups: PositiveInt = 2,
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5,
) -> nn.Module:
    """VGG-11 of the FedPVR paper: eight convolutions, five pools, then linear layers of 512-512-512-classes."""
    return _vgg("vgg11-fedpvr", input_shape, classes, norm, groups, dropout)


def vgg19(input_shape: tuple[int, ...], classes: int, norm: Norm = "none", groups: PositiveInt = 2) -> nn.Module:
    """VGG-19: sixteen convolutions, then linear layers of 2048-512-256-classes."""
    return _vgg("vgg19", input_shape, classes, norm, groups)


def _vgg(
    name: str, input_shape: tuple[int, ...], classes: int, norm: Norm, groups: int, dropout: float = 0.0
) -> nn.Module:
    widths, pooled, hidden, side = _VGG[name]
    channels, _, _ = image_shape(name, input_shape, smallest=16)
    features, classifier, make_norm = nn.Sequential(), nn.Sequential(), norm_layer(norm, groups)
    for k, (before, after) in enumerate(pairwise((channels, *widths)), start=1):
        features.add_module(f"conv{k}", nn.Conv2d(before, after, 3, padding=1))
        features.add_module(f"norm{k}", make_norm(after))
        if k + 1 in pooled:  # before ReLU: the result is the same, and ReLU processes a quarter of the values
            features.add_module(f"pool{k + 1}", nn.MaxPool2d(2))
        features.add_module(f"relu{k}", nn.ReLU())
    for k, (before, after) in enumerate(pairwise((side * side * widths[-1], *hidden)), start=1):
        if dropout:
            classifier.add_module(f"dropout{k}", nn.Dropout(dropout))
        classifier.add_module(f"fc{k}", nn.Linear(before, after))
        classifier.add_module(f"relu{k}", nn.ReLU())
    classifier.add_module("fc3", nn.Linear(hidden[-1], classes))
    # At 32x32, the average pool does nothing, and the maximum over 2x2 positions is the fifth pool. For other sizes,
    # both give the linear layers a fixed number of inputs.
    pool: nn.Module = nn.AdaptiveMaxPool2d(1) if side == 1 else nn.AdaptiveAvgPool2d(side)
    parts = OrderedDict(features=features, pool=pool, flatten=nn.Flatten(), classifier=classifier)
    return he(nn.Sequential(parts), small_head=True)
