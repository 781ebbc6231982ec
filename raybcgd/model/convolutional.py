"""Convolutional networks without residual connections: LeNet-5 and a small CNN."""

from pydantic import PositiveInt
from torch import nn

from raybcgd.channels import channels_last
from raybcgd.errors import ConfigError
from raybcgd.model.initialise import xavier

SMALLEST_SIDE = 4
"""The smallest images, in pixels per side, of resnet8 and the transformers."""


def image_shape(name: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """Return (channels, height, width), or raise an error if the model does not support these inputs."""
    if len(shape) != 3:
        raise ConfigError(f'model.name = "{name}" needs images, but samples have shape {shape}; set it to "mlp"')
    channels, height, width = shape
    if min(height, width) < smallest:
        if channels_last(shape):
            raise ConfigError(
                f'model.name = "{name}" needs samples of shape (channels, height, width), but {shape} looks like '
                "channels last; transpose the images to (n, channels, height, width)"
            )
        found = f"needs images of at least {smallest}x{smallest}, but the data has {height}x{width}"
        others = "mlp, resnet8 or vit_tiny" if min(height, width) >= SMALLEST_SIDE else "mlp"
        raise ConfigError(f'model.name = "{name}" {found}; set it to {others}')
    return channels, height, width


def _two_convolutions(name: str, input_shape: tuple[int, ...], classes: int, *widths: int) -> nn.Module:
    """Return two 5x5 convolutions, each followed by pooling, and three linear layers.

    `widths` are the output sizes of all layers but the last, which has one output per class.
    """
    channels, height, width = image_shape(name, input_shape, smallest=16)
    positions = (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    conv1, conv2, fc1, fc2 = widths
    model = nn.Sequential()
    # ReLU after pooling gives the same result as before it, and processes a quarter of the values.
    model.add_module("conv1", nn.Conv2d(channels, conv1, 5))
    model.add_module("pool1", nn.MaxPool2d(2))
    model.add_module("relu1", nn.ReLU())
    model.add_module("conv2", nn.Conv2d(conv1, conv2, 5))
    model.add_module("pool2", nn.MaxPool2d(2))
    model.add_module("relu2", nn.ReLU())
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc1", nn.Linear(conv2 * positions, fc1))
    model.add_module("relu3", nn.ReLU())
    model.add_module("fc2", nn.Linear(fc1, fc2))
    model.add_module("relu4", nn.ReLU())
    model.add_module("fc3", nn.Linear(fc2, classes))
    return xavier(model)


def lenet5(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """LeNet-5 of the FedBCGD paper: 64 channels per convolution, 384 and 192 hidden units."""
    return _two_convolutions("lenet5", input_shape, classes, 64, 64, 384, 192)


def cnn(
    input_shape: tuple[int, ...],
    classes: int,
    channels: tuple[PositiveInt, PositiveInt] = (6, 16),
    hidden: tuple[PositiveInt, PositiveInt] = (120, 84),
) -> nn.Module:
    """CNN of the PyTorch CIFAR-10 tutorial: by default, 6 and 16 channels, 120 and 84 hidden units."""
    return _two_convolutions("cnn", input_shape, classes, *channels, *hidden)
