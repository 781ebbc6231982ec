"""Layers of a module: the units from which blocks are built."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from raybcgd.errors import ConfigError

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm)


@dataclass(frozen=True)
class Entry:
    """One tensor of a module: a trainable parameter or a floating-point buffer."""

    name: str
    shape: tuple[int, ...]
    trained: bool

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layer:
    """A module with its own parameters, plus the norm layers that follow it. Only equal cuts split a layer."""

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
    layers: list[Layer] = []
    seen: set[int] = set()
    for path, child in module.named_modules():
        entries = _entries(path, child, seen)
        if not entries:
            continue
        may_merge = isinstance(child, _NORMS) and bool(layers)
        if may_merge and not any(covers(prefix, path) and not covers(prefix, layers[-1].name) for prefix in named):
            layers[-1] = Layer(layers[-1].name, (*layers[-1].entries, *entries))
        else:
            layers.append(Layer(path or type(module).__name__, tuple(entries)))
    if not any(entry.trained for layer in layers for entry in layer.entries):
        raise ConfigError("model.name: the module has no trainable parameters; choose another model")
    return layers


def frozen_parameters(module: nn.Module) -> int:
    """Return the number of frozen parameters, which are never uploaded."""
    return sum(parameter.numel() for parameter in module.parameters() if not parameter.requires_grad)


def _entries(path: str, child: nn.Module, seen: set[int]) -> list[Entry]:
    """Return the module's own tensors, except those in `seen`: they are tied to an earlier layer."""
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
