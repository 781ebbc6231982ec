"""The division of a model's parameters into blocks: contiguous slices of one flat vector, the shared block last."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from torch import nn

from raybcgd.errors import ConfigError
from raybcgd.model.divisions import DIVISIONS, check_pairing
from raybcgd.model.layers import Layer, covers, layers_of
from raybcgd.model.settings import BlocksConfig

_DEFAULT_COUNT = 5


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

    Every coordinate is in exactly one block. The shared block comes last and may be empty.
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
        """The N blocks, and the shared block unless it is empty."""
        return (*self.blocks, self.shared) if self.shared.size else self.blocks

    @cached_property
    def edges(self) -> tuple[int, ...]:
        """The start of each block, and the end of the last one."""
        return (0, *(block.stop for block in self.blocks))

    def with_edges(self, edges: tuple[int, ...]) -> "BlockLayout":
        """Return a layout with the same flat vector and shared block, but other edges between the blocks."""
        if edges == self.edges:
            return self
        runs = enumerate(pairwise(edges))
        blocks = tuple(Block(str(k), start, stop, _covered(self.order, start, stop)) for k, (start, stop) in runs)
        return BlockLayout(self.order, blocks, self.shared)

    def own(self, block: int) -> tuple[slice, ...]:
        """Return the slices that a client with this block uploads: its block and the shared block, unless empty."""
        parts = (self.blocks[block], self.shared)
        return tuple(part.slice for part in parts if part.size)


def cuts_layers(config: BlocksConfig) -> bool:
    """Return whether blocks may start inside a layer."""
    return config.division == "equal" or (config.division in DIVISIONS and DIVISIONS[config.division].cuts > 0)


def divide(module: nn.Module, config: BlocksConfig, clients: int | None = None) -> BlockLayout:
    """Divide a module into blocks as configured in `[blocks]`. By default, there are no more blocks than `clients`."""
    if config.division in DIVISIONS:
        return _named(module, config)
    shared_names = config.shared if isinstance(config.shared, tuple) else ()
    layers = layers_of(module, [name for group in (*(config.groups or ()), shared_names) for name in group])
    rest, shared = _split_shared(layers, config)
    most = _DEFAULT_COUNT if clients is None else min(_DEFAULT_COUNT, clients)
    if config.division == "equal":
        return _equal_cuts(rest, shared, config, most)
    count = config.count or min(most, len(rest) or most)
    if isinstance(config.shared, int):
        raise ConfigError(
            f'blocks.shared = {config.shared} is a number of coordinates, which needs blocks.division = "equal"; '
            "name layers instead"
        )
    if not rest and config.shared != "all":
        raise ConfigError('blocks.shared names all layers of the model; name fewer, or set it to "all"')
    groups: Sequence[Sequence[Layer]]
    if config.groups is not None:
        if config.division != "layers":
            raise ConfigError(f'blocks.groups needs blocks.division = "layers", not "{config.division}"; change one')
        groups = _explicit(rest, config.groups)
    elif config.shared == "all":
        groups = [[] for _ in range(count)]
    elif config.division == "layers":
        groups = _contiguous(rest, np.ones(len(rest)), count)
    elif config.division == "balanced":
        # All coordinates have the same dtype, so equal sizes are equal bytes.
        groups = _contiguous(rest, np.array([layer.size for layer in rest], dtype=np.float64), count)
    else:
        raise ConfigError(
            f'blocks.division = "{config.division}" is unknown; use layers, balanced, equal, '
            f"{', '.join(DIVISIONS)}, or blocks.groups"
        )
    return _layout(groups, shared)


def _named(module: nn.Module, config: BlocksConfig) -> BlockLayout:
    """Divide a module as a paper does. `shared` may be "none" or "all" instead of the paper's shared layers."""
    division = DIVISIONS[config.division]
    check_pairing(config.division, division, layers_of(module, division.names))
    if config.groups is not None or config.shared not in (None, "last", "none", "all"):
        raise ConfigError(
            f'blocks.division = "{config.division}" has its own groups and shared layers; remove blocks.groups '
            'and blocks.shared, or set blocks.shared to "none" or "all"'
        )
    groups, shared = division.groups, division.shared if config.shared in (None, "last") else config.shared
    if config.shared == "all":
        groups = ((),) * division.count
    elif config.shared == "none" and groups:
        # Without a shared block, the head belongs to the last block, which is empty in "lenet5-paper".
        groups = (*groups[:-1], (*groups[-1], *division.shared))
    if division.cuts:
        return divide(module, BlocksConfig(division="equal", count=division.cuts, shared=shared))
    return divide(module, BlocksConfig(groups=groups, shared=shared))


def _split_shared(layers: list[Layer], config: BlocksConfig) -> tuple[list[Layer], list[Layer]]:
    shared = config.shared
    if shared is None:
        shared = "last" if len(layers) > 1 or config.groups is not None else "none"
    if shared == "none" or isinstance(shared, int):
        return layers, []
    if shared == "all":
        return [], layers
    if shared == "last":
        if len(layers) == 1 and config.groups is None:
            raise ConfigError(
                'blocks.shared = "last" leaves nothing to divide in a model with one layer; set blocks.shared = "none"'
            )
        return layers[:-1], layers[-1:]
    for name in shared:
        if not any(covers(name, layer.name) for layer in layers):
            raise ConfigError(f'blocks.shared names "{name}", but the model\'s layers are {_names(layers)}; correct it')
    chosen = [layer for layer in layers if any(covers(name, layer.name) for name in shared)]
    return [layer for layer in layers if layer not in chosen], chosen


def _names(layers: Sequence[Layer]) -> str:
    return ", ".join(layer.name for layer in layers)


def _explicit(layers: list[Layer], groups: Sequence[Sequence[str]]) -> list[list[Layer]]:
    """Return the layers of each group. The longest matching name wins, so a group can contain part of a module."""
    owner = {name: number for number, group in enumerate(groups) for name in group}
    if len(owner) < sum(len(group) for group in groups):
        raise ConfigError("blocks.groups names a layer twice; name each layer once")
    result: list[list[Layer]] = [[] for _ in groups]
    unused, left_out = set(owner), []
    for layer in layers:
        name = max((name for name in owner if covers(name, layer.name)), key=len, default=None)
        if name is None:
            left_out.append(layer)
        else:
            result[owner[name]].append(layer)
            unused.discard(name)
    if unused:
        raise ConfigError(
            f'blocks.groups names "{min(unused)}", which is not one of the layers {_names(layers)}; correct it'
        )
    if left_out:
        raise ConfigError(f"blocks.groups leaves out {_names(left_out)}; add them to a group or to blocks.shared")
    return result


def _contiguous(layers: Sequence[Layer], weights: np.ndarray, count: int) -> list[Sequence[Layer]]:
    """Return `count` non-empty runs of layers with the smallest sum of squared run weights, by dynamic programming."""
    if len(layers) < count:
        layers_text = f"{len(layers)} layer{'' if len(layers) == 1 else 's'}"
        raise ConfigError(
            f"blocks.count = {count} is more than the {layers_text} to divide; "
            f'lower blocks.count to {len(layers)} or set blocks.division = "equal"'
        )
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    best = np.full((count + 1, len(layers) + 1), np.inf)
    cut = np.zeros((count + 1, len(layers) + 1), dtype=int)
    best[0, 0] = 0.0
    for k in range(1, count + 1):
        for end in range(k, len(layers) + 1):
            starts = np.arange(k - 1, end)
            # The sum of squares balances all runs; the maximum would ignore all but the largest.
            cost = best[k - 1, starts] + (sums[end] - sums[starts]) ** 2
            cut[k, end] = starts[int(np.argmin(cost))]
            best[k, end] = cost.min()
    groups: list[Sequence[Layer]] = []
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


def _equal_cuts(rest: list[Layer], shared: list[Layer], config: BlocksConfig, most: int) -> BlockLayout:
    order = (*rest, *shared)
    size = sum(layer.size for layer in order)
    tail = config.shared if isinstance(config.shared, int) else sum(layer.size for layer in shared)
    count = config.count or (most if config.shared == "all" else max(1, min(most, size - tail)))
    if size - tail < count and config.shared != "all":
        raise ConfigError(
            f"blocks.count = {count} is more than the {size - tail} coordinates that are not shared; "
            "lower blocks.count or blocks.shared"
        )
    edges = [(size - tail) * k // count for k in range(count + 1)]
    shared_block = Block("shared", size - tail, size, _covered(order, size - tail, size))
    return BlockLayout(order, (), shared_block).with_edges(tuple(edges))


def _covered(order: Sequence[Layer], start: int, stop: int) -> tuple[str, ...]:
    """Return the layers with coordinates between `start` and `stop`."""
    starts = _starts(order)
    return tuple(
        layer.name
        for layer, low, high in zip(order, starts[:-1], starts[1:], strict=True)
        if max(low, start) < min(high, stop)
    )


def _starts(order: Sequence[Layer]) -> np.ndarray:
    """Return the start of each layer in the flat vector, and the end of the last one."""
    return np.concatenate([[0], np.cumsum([layer.size for layer in order], dtype=np.int64)])


def recut(
    layout: BlockLayout, config: BlocksConfig, weights: np.ndarray | None, rng: np.random.Generator
) -> tuple[int, ...]:
    """Return new edges that balance the coordinates' weights over the blocks. With None, all weights are 1.

    If all weights are zero, the edges stay the same. With redivide = "shift", shift equal blocks at random instead.
    """
    count, size = len(layout.blocks), layout.shared.start
    if size == 0 or (cuts_layers(config) and size < count):
        raise ConfigError(
            f"blocks.redivide_every: the {size} coordinates outside the shared block are too few for {count} blocks; "
            "lower blocks.count, or choose a smaller blocks.shared"
        )
    if config.redivide == "shift":
        return _shifted(count, size, config, rng)
    sums = np.concatenate([[0.0], np.cumsum(np.ones(size) if weights is None else weights[:size])])
    if not sums[-1] > 0:
        return layout.edges
    if cuts_layers(config):
        edges = [int(k) - 1 for k in np.searchsorted(sums, sums[-1] * np.arange(count) / count, side="right")]
        edges = [0, *edges[1:], size]
        for k in range(1, count):  # give each block at least one coordinate
            edges[k] = min(max(edges[k], edges[k - 1] + 1), size - (count - k))
        return tuple(edges)
    starts = _starts(layout.order)
    layers = layout.order[: int(np.searchsorted(starts, size, side="left"))]
    groups = _contiguous(layers, np.diff(sums[starts[: len(layers) + 1]]), count)
    return (0, *(int(stop) for stop in np.cumsum([sum(layer.size for layer in group) for group in groups])))


def _shifted(count: int, size: int, config: BlocksConfig, rng: np.random.Generator) -> tuple[int, ...]:
    if not cuts_layers(config):
        raise ConfigError(
            f'blocks.redivide = "shift" needs blocks.division = "equal", not "{config.division}"; change one'
        )
    offset = int(rng.integers(-(size // count // 2), size // count // 2 + 1))
    return (0, *(size * k // count + offset for k in range(1, count)), size)
