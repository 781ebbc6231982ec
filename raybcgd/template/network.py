"""The model: a function that returns a torch.nn.Module. Its layers become the blocks of block-coordinate methods."""

from torch import nn


def network(input_shape, classes, width=64):
    """Return a network for vectors. model.options sets the arguments after `classes`."""
    return nn.Sequential(
        nn.Linear(input_shape[0], width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )
