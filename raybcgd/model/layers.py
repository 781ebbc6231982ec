"""Layers of a module: the units from which blocks are built."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy

from raybcgd.errors import ConfigError

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class Entry(NamedTuple):
    """One tensor of a module: a trainable parameter or a floating-point buffer."""

    name: str
    shape: tuple[int, ...]
    trained: bool

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return prod(self.shape)


class Layer(NamedTuple):
    """A module with its own parameters, and the norm layers that follow it. Only equal cuts split a layer."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return sum(entry.size for entry in self.entries)


def covers(prefix: str, name: str) -> bool:
    """Return whether `prefix` is the layer `name` or a module that contains it."""
    return name == prefix or name.startswith(prefix + ".")


def layers_of(module: nn.Module, named: Sequence[str] = ()) -> list[Layer]:
    """Return the layers of a module in definition order. Norm layers are merged into the layer before them.

    A norm layer stays separate if a prefix in `named` covers it but not the layer before it. Frozen parameters
    (`requires_grad = False`) are left out: they are neither trained nor uploaded.
    """
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    entries: dict[str, tuple[Entry, ...]] = {}
    for name, tensor in (*trained.items(), *module.named_buffers()):
        if is_lazy(tensor):
            layer = name.rpartition(".")[0]
            raise ConfigError(
                f'layer "{layer}" of the model is lazy and has no size yet; use a layer with explicit sizes'
            )
    # torch lists a tied tensor once, under its first name.
    for name, tensor in (*trained.items(), *module.named_buffers()):
        if tensor.is_floating_point():
            path = name.rpartition(".")[0]
            entries[path] = (*entries.get(path, ()), Entry(name, tuple(tensor.shape), name in trained))
    layers: list[Layer] = []
    for path, child in module.named_modules():
        if path not in entries:
            continue
        may_merge = isinstance(child, _NORMS) and bool(layers)
        if may_merge and not any(covers(prefix, path) and not covers(prefix, layers[-1].name) for prefix in named):
            layers[-1] = Layer(layers[-1].name, layers[-1].entries + entries[path])
        else:
            layers.append(Layer(path or type(module).__name__, entries[path]))
    if not any(entry.trained for layer in layers for entry in layer.entries):
        raise ConfigError("the model has no trainable parameters; unfreeze some, or choose another model")
    return layers
