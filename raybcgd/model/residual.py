"""Residual networks for small images (He et al., CVPR 2016), built from torchvision's blocks."""

from collections.abc import Callable

from pydantic import PositiveInt
from torch import Tensor, nn

from raybcgd.model.convolutional import image_shape
from raybcgd.model.norm_layers import Norm, norm_layer
from raybcgd.torchvision_ops import import_torchvision


def resnet18(input_shape: tuple[int, ...], classes: int, norm: Norm = "group", groups: PositiveInt = 2) -> nn.Module:
    """torchvision's ResNet-18 with the CIFAR stem: a 3x3 convolution with stride 1 and no pooling."""
    channels, _, _ = image_shape("resnet18", input_shape, smallest=8)
    models = import_torchvision("models")
    model: nn.Module = models.resnet18(num_classes=classes, norm_layer=norm_layer(norm, groups))
    model.conv1 = _stem(channels, 64)
    model.maxpool = nn.Identity()
    return model


def resnet8(
    input_shape: tuple[int, ...],
    classes: int,
    width: PositiveInt = 16,
    norm: Norm = "group",
    groups: PositiveInt = 2,
) -> nn.Module:
    """ResNet-8, the smallest of the 6n + 2 CIFAR family: a stem and three stages of one block each."""
    channels, _, _ = image_shape("resnet8", input_shape, smallest=4)
    return _ResNet8(channels, classes, width, norm_layer(norm, groups))


def _stem(channels: int, width: int) -> nn.Conv2d:
    stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    return stem


class _ResNet8(nn.Module):
    """ResNet with three stages, named as in torchvision's ResNet, which always has four."""

    def __init__(self, channels: int, classes: int, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = _stem(channels, width)
        self.bn1 = norm(width)
        self.relu = nn.ReLU()
        self.layer1 = _stage(width, width, norm)
        self.layer2 = _stage(width, 2 * width, norm)
        self.layer3 = _stage(2 * width, 4 * width, norm)
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


def _stage(before: int, after: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    """One basic block. It halves the resolution when it doubles the width."""
    stride = after // before
    shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after)) if stride > 1 else None
    basic_block = import_torchvision("models").resnet.BasicBlock
    block: nn.Module = basic_block(before, after, stride, downsample=shortcut, norm_layer=norm)
    for child in block.modules():
        if isinstance(child, nn.Conv2d):
            nn.init.kaiming_normal_(child.weight, mode="fan_out", nonlinearity="relu")
    return block
