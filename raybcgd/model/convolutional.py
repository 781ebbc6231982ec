"""Convolutional networks without residual connections: LeNet-5 and a small CNN."""

from torch import nn

from raybcgd.errors import ConfigError
from raybcgd.model.initialise import xavier


def image_shape(name: str, input_shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """Return (channels, height, width), or raise an error if the model cannot take these inputs."""
    if len(input_shape) != 3:
        raise ConfigError(
            f'model.name = "{name}" needs images of shape (channels, height, width), but the samples have shape '
            f'{input_shape}; choose another data.source, or set model.name = "mlp"'
        )
    channels, height, width = input_shape
    if min(height, width) < smallest:
        raise ConfigError(
            f'model.name = "{name}" needs images of at least {smallest}x{smallest}, but the data has '
            f"{height}x{width}; set model.name to mlp, resnet8 or vit_tiny, or choose another data.source"
        )
    return channels, height, width


def _two_convolutions(
    name: str, input_shape: tuple[int, ...], classes: int, widths: tuple[int, int], hidden: tuple[int, int]
) -> nn.Module:
    """Two 5x5 convolutions, each followed by pooling, then three linear layers."""
    channels, height, width = image_shape(name, input_shape, smallest=16)
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    model = nn.Sequential()
    model.add_module("conv1", nn.Conv2d(channels, widths[0], 5))
    model.add_module("relu1", nn.ReLU())
    model.add_module("pool1", nn.MaxPool2d(2))
    model.add_module("conv2", nn.Conv2d(widths[0], widths[1], 5))
    model.add_module("relu2", nn.ReLU())
    model.add_module("pool2", nn.MaxPool2d(2))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc1", nn.Linear(widths[1] * rows * columns, hidden[0]))
    model.add_module("relu3", nn.ReLU())
    model.add_module("fc2", nn.Linear(hidden[0], hidden[1]))
    model.add_module("relu4", nn.ReLU())
    model.add_module("fc3", nn.Linear(hidden[1], classes))
    return xavier(model)


def lenet5(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """LeNet-5 of the FedBCGD paper: 64 channels per convolution, 384 and 192 hidden units."""
    return _two_convolutions("lenet5", input_shape, classes, (64, 64), (384, 192))


def cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """CNN of the PyTorch CIFAR-10 tutorial: 6 and 16 channels, 120 and 84 hidden units."""
    return _two_convolutions("cnn", input_shape, classes, (6, 16), (120, 84))
