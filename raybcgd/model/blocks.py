"""How a model's parameters are divided into blocks: contiguous slices of one flat vector, the shared block last."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from torch import Tensor, nn

from raybcgd.errors import ConfigError
from raybcgd.section import Section

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm)


class BlocksConfig(Section):
    """`[blocks]`: the division of the parameters."""

    division: str = "layers"
    """`layers`: whole layers, as in `groups` or about equally many in each block; `balanced`: whole layers, about
    equally many parameters in each block; `equal`: cuts of equal size; or a division by name (see `raybcgd plan`)."""
    count: Annotated[int, Field(ge=1)] = 5
    """N, the number of blocks; a named division and `groups` bring their own."""
    groups: tuple[tuple[str, ...], ...] | None = None
    """Layer names (or their prefixes) of each block, in order, for `division = "layers"`."""
    shared: Literal["last", "none", "all"] | tuple[str, ...] | Annotated[int, Field(ge=0)] = "last"
    """The block that every client uploads: the last parametrised layer, none, everything, layer names, or the last
    n coordinates (with `equal` cuts)."""


@dataclass(frozen=True)
class Entry:
    """One tensor of the module: a trained parameter or a floating buffer."""

    name: str
    shape: tuple[int, ...]
    trained: bool

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Layer:
    """A module that owns parameters, with the norm layers that follow it: the unit that is never torn apart, except
    by equal cuts."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True)
class Block:
    """A contiguous slice of the flat vector."""

    name: str
    start: int
    stop: int
    layers: tuple[str, ...]

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def slice(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class BlockLayout:
    """The order of all tensors in the flat vector, and the blocks as slices of it.

    Every coordinate is in exactly one of `blocks` and `shared`; the shared block, which may be empty, comes last.
    """

    order: tuple[Layer, ...]
    blocks: tuple[Block, ...]
    shared: Block

    @cached_property
    def size(self) -> int:
        """d, the length of the flat vector."""
        return self.shared.stop

    @property
    def all_blocks(self) -> tuple[Block, ...]:
        """The N blocks, and the shared one if there is one."""
        return (*self.blocks, self.shared) if self.shared.size else self.blocks

    def own(self, block: int) -> tuple[slice, ...]:
        """What a client of group `block` uploads: its block and the shared one, as non-empty slices."""
        parts = (self.blocks[block], self.shared)
        return tuple(part.slice for part in parts if part.size)


def layers_of(module: nn.Module) -> list[Layer]:
    """The parametrised layers of a module in its own order; norm layers join the layer before them.

    Frozen parameters (`requires_grad = False`) stay out: they neither travel nor change.
    """
    layers: list[Layer] = []
    seen: set[int] = set()
    for path, child in module.named_modules():
        entries = []
        tensors: list[tuple[str, Tensor | None, bool]] = [
            *((name, tensor, True) for name, tensor in child._parameters.items()),
            *((name, tensor, False) for name, tensor in child._buffers.items()),
        ]
        for name, tensor, is_parameter in tensors:
            if tensor is None or not tensor.is_floating_point() or id(tensor) in seen:
                continue
            if is_parameter and not tensor.requires_grad:
                continue
            seen.add(id(tensor))
            entries.append(Entry(f"{path}.{name}" if path else name, tuple(tensor.shape), is_parameter))
        if not entries:
            continue
        if isinstance(child, _NORMS) and layers:
            layers[-1] = Layer(layers[-1].name, (*layers[-1].entries, *entries))
        else:
            layers.append(Layer(path or type(module).__name__, tuple(entries)))
    if not layers:
        raise ConfigError("model: the module has no trainable parameters; give one that has")
    return layers


def divide(module: nn.Module, config: BlocksConfig) -> BlockLayout:
    """The block layout of a module under `[blocks]`."""
    layers = layers_of(module)
    rest, shared = _split_shared(layers, config)
    if config.division == "equal":
        return _equal_cuts(rest, shared, config)
    if isinstance(config.shared, int):
        raise ConfigError(
            f'blocks.shared = {config.shared} (a number of coordinates) needs blocks.division = "equal"; name layers'
        )
    if config.groups is not None:
        if config.division != "layers":
            raise ConfigError(f'blocks.groups goes with blocks.division = "layers", not "{config.division}"')
        groups = _explicit(rest, config.groups)
    elif config.shared == "all":
        groups = [[] for _ in range(config.count)]
    elif config.division == "layers":
        groups = _contiguous(rest, np.ones(len(rest)), config)
    elif config.division == "balanced":
        groups = _contiguous(rest, np.array([layer.size for layer in rest], dtype=np.float64), config)
    else:
        raise ConfigError(
            f'blocks.division = "{config.division}" is unknown; use layers, balanced or equal, or blocks.groups'
        )
    return _layout(groups, shared)


def _matches(layer: Layer, name: str) -> bool:
    return layer.name == name or layer.name.startswith(name + ".")


def _split_shared(layers: list[Layer], config: BlocksConfig) -> tuple[list[Layer], list[Layer]]:
    shared = config.shared
    if shared == "none" or isinstance(shared, int):
        return layers, []
    if shared == "all":
        return [], layers
    if shared == "last":
        if len(layers) == 1 and config.groups is None:
            raise ConfigError(
                'blocks.shared = "last" would leave nothing to divide in a model of one layer; '
                'set blocks.shared = "none"'
            )
        return layers[:-1], layers[-1:]
    for name in shared:
        if not any(_matches(layer, name) for layer in layers):
            raise ConfigError(f'blocks.shared names "{name}", but the model has only {_names(layers)}')
    chosen = [layer for layer in layers if any(_matches(layer, name) for name in shared)]
    return [layer for layer in layers if layer not in chosen], chosen


def _names(layers: Sequence[Layer]) -> str:
    return ", ".join(layer.name for layer in layers)


def _explicit(layers: list[Layer], groups: Sequence[Sequence[str]]) -> list[list[Layer]]:
    left = list(layers)
    result = []
    for group in groups:
        taken = [layer for layer in left if any(_matches(layer, name) for name in group)]
        for name in group:
            if not any(_matches(layer, name) for layer in taken):
                raise ConfigError(
                    f'blocks.groups names "{name}", which no layer left over matches; '
                    f"layers to divide: {_names(layers)}"
                )
        left = [layer for layer in left if layer not in taken]
        result.append(taken)
    if left:
        raise ConfigError(f"blocks.groups leaves out {_names(left)}; add them to a group or to blocks.shared")
    return result


def _contiguous(layers: list[Layer], weights: np.ndarray, config: BlocksConfig) -> list[list[Layer]]:
    """`count` non-empty runs of layers that minimise the sum of the squared run weights (exact, by dynamic programming)."""
    count = config.count
    if len(layers) < count:
        raise ConfigError(
            f"blocks.count = {count} is more than the {len(layers)} layers there are to divide; "
            f'lower blocks.count to {len(layers)} or set blocks.division = "equal"'
        )
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    best = np.full((count + 1, len(layers) + 1), np.inf)
    cut = np.zeros((count + 1, len(layers) + 1), dtype=int)
    best[0, 0] = 0.0
    for k in range(1, count + 1):
        for end in range(k, len(layers) + 1):
            starts = np.arange(k - 1, end)
            # Squares make the runs even where the largest one leaves the others free.
            cost = best[k - 1, starts] + (sums[end] - sums[starts]) ** 2
            cut[k, end] = starts[int(np.argmin(cost))]
            best[k, end] = cost.min()
    groups: list[list[Layer]] = []
    end = len(layers)
    for k in range(count, 0, -1):
        start = int(cut[k, end])
        groups.insert(0, layers[start:end])
        end = start
    return groups


def _layout(groups: Sequence[Sequence[Layer]], shared: Sequence[Layer]) -> BlockLayout:
    blocks = []
    start = 0
    for number, group in enumerate(groups):
        stop = start + sum(layer.size for layer in group)
        blocks.append(Block(str(number), start, stop, tuple(layer.name for layer in group)))
        start = stop
    stop = start + sum(layer.size for layer in shared)
    order = tuple(layer for group in (*groups, shared) for layer in group)
    return BlockLayout(order, tuple(blocks), Block("shared", start, stop, tuple(layer.name for layer in shared)))


def _equal_cuts(rest: list[Layer], shared: list[Layer], config: BlocksConfig) -> BlockLayout:
    order = (*rest, *shared)
    size = sum(layer.size for layer in order)
    tail = config.shared if isinstance(config.shared, int) else sum(layer.size for layer in shared)
    if size - tail < config.count and config.shared != "all":
        raise ConfigError(
            f"blocks.count = {config.count} cuts need at least as many coordinates, and {size - tail} are not shared; "
            "lower blocks.count or blocks.shared"
        )
    edges = [(size - tail) * k // config.count for k in range(config.count + 1)]
    starts = np.concatenate([[0], np.cumsum([layer.size for layer in order])])

    def covered(start: int, stop: int) -> tuple[str, ...]:
        return tuple(
            layer.name
            for layer, low, high in zip(order, starts[:-1], starts[1:], strict=True)
            if max(low, start) < min(high, stop)
        )

    blocks = tuple(Block(str(k), edges[k], edges[k + 1], covered(edges[k], edges[k + 1])) for k in range(config.count))
    return BlockLayout(order, blocks, Block("shared", size - tail, size, covered(size - tail, size)))
