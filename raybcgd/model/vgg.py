"""VGG for small images (Simonyan and Zisserman, ICLR 2015), with the linear layers of the FedBCGD paper.

Unlike torchvision's VGG, it has no fifth pooling layer: a 32x32 image becomes 2x2 positions of 512 features, the
paper's 2 048 inputs to the linear layers. Dropout is left out: its masks would not be a function of client and round.
"""

from collections import OrderedDict
from itertools import pairwise

from pydantic import PositiveInt
from torch import nn

from raybcgd.model.convolutional import image_shape
from raybcgd.model.initialise import he
from raybcgd.model.norm_layers import Norm, norm_layer

# Per model: channels of the convolutions, which of them (from 1) follow a pool, widths of the hidden linear layers.
_VGG = {
    "vgg11": ((64, 128, 256, 256, 512, 512, 512, 512), (2, 3, 5, 7), (1024, 1024)),
    "vgg19": ((64, 64, 128, 128, *(256,) * 4, *(512,) * 8), (3, 5, 9, 13), (512, 256)),
}


def vgg11(input_shape: tuple[int, ...], classes: int, norm: Norm = "none", groups: PositiveInt = 2) -> nn.Module:
    """VGG-11: eight convolutions, then linear layers of 2048-1024-1024-classes."""
    return _vgg("vgg11", input_shape, classes, norm, groups)


def vgg19(input_shape: tuple[int, ...], classes: int, norm: Norm = "none", groups: PositiveInt = 2) -> nn.Module:
    """VGG-19: sixteen convolutions, then linear layers of 2048-512-256-classes."""
    return _vgg("vgg19", input_shape, classes, norm, groups)


def _vgg(name: str, input_shape: tuple[int, ...], classes: int, norm: Norm, groups: int) -> nn.Module:
    channels, _, _ = image_shape(name, input_shape, smallest=16)
    widths, pooled, hidden = _VGG[name]
    features, classifier, make_norm = nn.Sequential(), nn.Sequential(), norm_layer(norm, groups)
    for k, (before, after) in enumerate(pairwise((channels, *widths)), start=1):
        features.add_module(f"conv{k}", nn.Conv2d(before, after, 3, padding=1))
        features.add_module(f"norm{k}", make_norm(after))
        if k + 1 in pooled:  # before ReLU, which is the same function on a quarter of the values
            features.add_module(f"pool{k + 1}", nn.MaxPool2d(2))
        features.add_module(f"relu{k}", nn.ReLU())
    for k, (before, after) in enumerate(pairwise((4 * widths[-1], *hidden)), start=1):
        classifier.add_module(f"fc{k}", nn.Linear(before, after))
        classifier.add_module(f"relu{k}", nn.ReLU())
    classifier.add_module("fc3", nn.Linear(hidden[-1], classes))
    # The pooling does nothing at 32x32; for other sizes, it gives the linear layers a fixed number of inputs.
    parts = OrderedDict(features=features, pool=nn.AdaptiveAvgPool2d(2), flatten=nn.Flatten(), classifier=classifier)
    return he(nn.Sequential(parts), small_head=True)
