"""The initialisation that the zoo's own models share."""

from torch import nn


def he(module: nn.Module) -> nn.Module:
    """He's initialisation with zero biases, which plain SGD at a rate of 0.1 can start from.

    PyTorch's default shrinks the signal by about 2.5 a layer, and a narrow perceptron of six layers then stays at
    chance for many rounds. The last layer has no ReLU behind it, so its variance is half of the others'.
    """
    last: nn.Module | None = None
    for child in module.modules():
        if isinstance(child, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(child.weight, mode="fan_in", nonlinearity="relu")
            if child.bias is not None:
                nn.init.zeros_(child.bias)
            last = child
    if isinstance(last, nn.Linear):
        nn.init.kaiming_normal_(last.weight, mode="fan_in", nonlinearity="linear")
    return module
