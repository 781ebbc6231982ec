"""VGG for small images (Simonyan and Zisserman, ICLR 2015), with the linear layers of the FedBCGD paper.

Unlike torchvision's VGG, it has no fifth pooling: a 32x32 image ends as 2x2 positions of 512 features, the paper's
2 048 inputs to the linear layers. There is no dropout, whose masks would not be a function of client and round.
"""

from pydantic import PositiveInt
from torch import nn

from raybcgd.model.convolutional import image_shape
from raybcgd.model.initialise import he
from raybcgd.model.norm_layers import Norm, norm_layer

_STAGES_11 = ((64,), (128,), (256, 256), (512, 512), (512, 512))
_STAGES_19 = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)


def vgg11(input_shape: tuple[int, ...], classes: int, norm: Norm = "none", groups: PositiveInt = 2) -> nn.Module:
    """VGG-11: eight convolutions, then linear layers of 2048-1024-1024-classes."""
    return _vgg("vgg11", input_shape, classes, _STAGES_11, (1024, 1024), norm, groups)


def vgg19(input_shape: tuple[int, ...], classes: int, norm: Norm = "none", groups: PositiveInt = 2) -> nn.Module:
    """VGG-19: sixteen convolutions, then linear layers of 2048-512-256-classes."""
    return _vgg("vgg19", input_shape, classes, _STAGES_19, (512, 256), norm, groups)


def _vgg(
    name: str,
    input_shape: tuple[int, ...],
    classes: int,
    stages: tuple[tuple[int, ...], ...],
    hidden: tuple[int, int],
    norm: Norm,
    groups: int,
) -> nn.Module:
    channels, _, _ = image_shape(name, input_shape, smallest=16)
    make_norm = norm_layer(norm, groups)
    features = nn.Sequential()
    number = 0
    for stage, widths in enumerate(stages, start=1):
        if stage > 1:
            features.add_module(f"pool{stage - 1}", nn.MaxPool2d(2))
        for width in widths:
            number += 1
            features.add_module(f"conv{number}", nn.Conv2d(channels, width, 3, padding=1))
            features.add_module(f"norm{number}", make_norm(width))
            features.add_module(f"relu{number}", nn.ReLU())
            channels = width
    classifier = nn.Sequential()
    before = channels * 4
    for layer, width in enumerate(hidden, start=1):
        classifier.add_module(f"fc{layer}", nn.Linear(before, width))
        classifier.add_module(f"relu{layer}", nn.ReLU())
        before = width
    classifier.add_module("fc3", nn.Linear(before, classes))
    model = nn.Sequential()
    model.add_module("features", features)
    # The identity at 32x32; for other sizes, it gives the linear layers a fixed number of inputs.
    model.add_module("pool", nn.AdaptiveAvgPool2d(2))
    model.add_module("flatten", nn.Flatten())
    model.add_module("classifier", classifier)
    return he(model, small_head=True)
