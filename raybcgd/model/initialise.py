"""How the zoo's own models start, chosen so that plain SGD at the papers' rates trains each of them.

PyTorch's default shrinks the signal by about 2.5 a layer: the perceptron on the digits and VGG-11 on CIFAR-10 then stay
at chance for hundreds of steps. He's keeps it, but makes LeNet-5 at a rate of 0.1 jump to a loss of 13 within the first
steps; Xavier's, in between, trains that one best and is too small again for VGG-11.
"""

from torch import nn


def he(module: nn.Module, small_head: bool = False) -> nn.Module:
    """He's initialisation with zero biases; the last layer has no ReLU behind it, so half of the others' variance.

    A small head makes the first predictions uniform, without which a wide network's first step is far too long.
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
    """Xavier's initialisation with zero biases."""
    for layer in _layers(module):
        nn.init.xavier_uniform_(layer.weight)
    return module


def _layers(module: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    """The layers with weights, their biases set to zero."""
    layers = [child for child in module.modules() if isinstance(child, nn.Conv2d | nn.Linear)]
    for layer in layers:
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layers
