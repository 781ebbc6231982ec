"""Residual networks for small images (He et al., CVPR 2016), built from torchvision's blocks."""

from collections import OrderedDict
from collections.abc import Callable

from pydantic import PositiveInt
from torch import nn

from raybcgd.model.convolutional import SMALLEST_SIDE, image_shape
from raybcgd.model.norm_layers import Norm, norm_layer
from raybcgd.torchvision_ops import import_torchvision


def resnet18(input_shape: tuple[int, ...], classes: int, norm: Norm = "group", groups: PositiveInt = 2) -> nn.Module:
    """torchvision's ResNet-18 with the CIFAR stem: a 3x3 convolution with stride 1 and no pooling."""
    channels, _, _ = image_shape("resnet18", input_shape, smallest=8)
    model: nn.Module = import_torchvision("models").resnet18(num_classes=classes, norm_layer=norm_layer(norm, groups))
    model.conv1 = _he(nn.Conv2d(channels, 64, 3, padding=1, bias=False))
    model.maxpool = nn.Identity()
    return model


def resnet8(
    input_shape: tuple[int, ...], classes: int, width: PositiveInt = 16, norm: Norm = "group", groups: PositiveInt = 2
) -> nn.Module:
    """ResNet-8, the smallest of the 6n + 2 CIFAR family: a stem and three stages of one block each."""
    channels, _, _ = image_shape("resnet8", input_shape, smallest=SMALLEST_SIDE)
    make_norm = norm_layer(norm, groups)
    # The names are those of torchvision's ResNet, which always has four stages.
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=_he(nn.Conv2d(channels, width, 3, padding=1, bias=False)),
        bn1=make_norm(width),
        relu=nn.ReLU(),
        layer1=_stage(width, width, make_norm),
        layer2=_stage(width, 2 * width, make_norm),
        layer3=_stage(2 * width, 4 * width, make_norm),
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc=nn.Linear(4 * width, classes),
    )
    return nn.Sequential(layers)


def _stage(before: int, after: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    """Return one basic block. If it doubles the width, it halves the resolution."""
    stride = after // before
    shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after)) if stride > 1 else None
    block = import_torchvision("models").resnet.BasicBlock
    return _he(block(before, after, stride, downsample=shortcut, norm_layer=norm))


def _he(module: nn.Module) -> nn.Module:
    """Initialise convolutions as torchvision's ResNet does."""
    for child in module.modules():
        if isinstance(child, nn.Conv2d):
            nn.init.kaiming_normal_(child.weight, mode="fan_out", nonlinearity="relu")
    return module
