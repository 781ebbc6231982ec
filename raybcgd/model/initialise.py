"""Initialisation of the built-in models, chosen so that plain SGD trains each of them at the papers' step sizes.

PyTorch's default shrinks activations by a factor of about 2.5 per layer, which keeps the MLP on digits and VGG-11 on
CIFAR-10 at chance for hundreds of steps. He initialisation preserves the scale, but the loss of LeNet-5 at a step size
of 0.1 then jumps to 13 within the first steps. Xavier lies in between: best for LeNet-5, too small for VGG-11.
"""

from torch import nn


def he(module: nn.Module, small_head: bool = False) -> nn.Module:
    """Apply He initialisation with zero biases. The last layer gets half the variance, since no ReLU follows it.

    `small_head` makes the initial predictions nearly uniform. Otherwise, a wide network's first step is far too large.
    """
    layers = _layers(module)
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if small_head:
        nn.init.normal_(layers[-1].weight, std=0.01)
    else:
        nn.init.kaiming_normal_(layers[-1].weight, nonlinearity="linear")
    return module


def xavier(module: nn.Module) -> nn.Module:
    """Apply Xavier initialisation with zero biases."""
    for layer in _layers(module):
        nn.init.xavier_uniform_(layer.weight)
    return module


def _layers(module: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    """Set all biases to zero and return the convolutional and linear layers."""
    layers = [child for child in module.modules() if isinstance(child, nn.Conv2d | nn.Linear)]
    for layer in layers:
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layers
