"""The layers of a module: the units that a division deals out."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from raybcgd.errors import ConfigError

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm)


@dataclass(frozen=True)
class Entry:
    """One tensor of the module: a trained parameter or a floating buffer."""

    name: str
    shape: tuple[int, ...]
    trained: bool

    @property
    def size(self) -> int:
        """How many coordinates it has."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layer:
    """A module that owns parameters, with the norm layers that follow it: the unit that is never torn apart, except
    by equal cuts."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """How many coordinates it has."""
        return sum(entry.size for entry in self.entries)


def covers(prefix: str, name: str) -> bool:
    """Whether a name in a config means a layer: the layer itself or a module around it."""
    return name == prefix or name.startswith(prefix + ".")


def layers_of(module: nn.Module, named: Sequence[str] = ()) -> list[Layer]:
    """The parametrised layers of a module in its own order; norm layers join the layer before them.

    A norm layer that one of the `named` prefixes means, but not the layer before it, stays a layer of its own.
    Frozen parameters (`requires_grad = False`) stay out: they neither travel nor change.
    """
    layers: list[Layer] = []
    seen: set[int] = set()
    for path, child in module.named_modules():
        entries = _entries(path, child, seen)
        if not entries:
            continue
        joins = isinstance(child, _NORMS) and bool(layers)
        if joins and not any(covers(prefix, path) and not covers(prefix, layers[-1].name) for prefix in named):
            layers[-1] = Layer(layers[-1].name, (*layers[-1].entries, *entries))
        else:
            layers.append(Layer(path or type(module).__name__, tuple(entries)))
    if not any(entry.trained for layer in layers for entry in layer.entries):
        raise ConfigError("model.name: the module has no trainable parameters; choose one that has")
    return layers


def frozen_parameters(module: nn.Module) -> int:
    """How many parameters stay as they are, and so never travel."""
    return sum(parameter.numel() for parameter in module.parameters() if not parameter.requires_grad)


def _entries(path: str, child: nn.Module, seen: set[int]) -> list[Entry]:
    """The tensors that a module itself owns; those in `seen` are tied to an earlier layer, where they stay."""
    tensors: list[tuple[str, Tensor | None, bool]] = [
        *((name, tensor, True) for name, tensor in child._parameters.items()),
        *((name, tensor, False) for name, tensor in child._buffers.items()),
    ]
    entries = []
    for name, tensor, is_parameter in tensors:
        if tensor is None or not tensor.is_floating_point() or id(tensor) in seen:
            continue
        if is_parameter and not tensor.requires_grad:
            continue
        seen.add(id(tensor))
        entries.append(Entry(f"{path}.{name}" if path else name, tuple(tensor.shape), is_parameter))
    return entries
