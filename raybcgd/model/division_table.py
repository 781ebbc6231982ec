"""Tables for `raybcgd blocks`: the blocks of a division, and the bytes that freezing saves."""

from typing import NamedTuple

import torch
from torch import nn

from raybcgd.model.blocks import Block, BlockLayout
from raybcgd.model.layers import Layer


class Row(NamedTuple):
    """One block of a division."""

    block: str
    layers: tuple[str, ...]
    """Names, each with the norm layers that belong to it, such as "conv1 + bn1"."""
    parameters: int
    """Trainable parameters."""
    bytes: int
    """Size of the block, which also holds floating-point buffers."""
    share: float
    """Fraction of d."""
    weights: int
    """Entries of weight matrices and kernels, without biases and norm layers, as counted in the papers' tables."""


class UploadSaving(NamedTuple):
    """What freezing (LoRA) and blocks save: the upload per client and round, and that of the whole model."""

    frozen: int
    """Number of frozen parameters, which are never uploaded."""
    upload_bytes: float
    """Mean upload: the client's block and the shared block."""
    whole_model_bytes: int
    """Upload of all parameters, frozen or not."""


def division_table(layout: BlockLayout, dtype: torch.dtype | str) -> list[Row]:
    """Return one row per block; the shared block, if any, is last."""
    itemsize, d = _itemsize(dtype), layout.size
    names = {layer.name: _with_norms(layer) for layer in layout.order}
    return [
        Row(
            block.name,
            tuple(names[layer] for layer in block.layers),
            _trained_in(layout, block, dimensions=0),
            block.size * itemsize,
            block.size / d,
            _trained_in(layout, block, dimensions=2),
        )
        for block in layout.all_blocks
    ]


def upload_saving(module: nn.Module, layout: BlockLayout, dtype: torch.dtype | str) -> UploadSaving:
    """Return the saving when all blocks are assigned equally often."""
    own = layout.shared.start / len(layout.blocks) + layout.shared.size
    frozen = sum(parameter.numel() for parameter in module.parameters() if not parameter.requires_grad)
    return UploadSaving(frozen, own * _itemsize(dtype), (layout.size + frozen) * _itemsize(dtype))


def _with_norms(layer: Layer) -> str:
    paths = dict.fromkeys(entry.name.rpartition(".")[0] for entry in layer.entries)
    return " + ".join([layer.name, *(path for path in paths if path not in ("", layer.name))])


def _itemsize(dtype: torch.dtype | str) -> int:
    return dtype.itemsize if isinstance(dtype, torch.dtype) else int(getattr(torch, dtype).itemsize)


def _trained_in(layout: BlockLayout, block: Block, dimensions: int) -> int:
    """Count the trainable coordinates of a block, in tensors of at least this many dimensions."""
    total = start = 0
    for entry in (entry for layer in layout.order for entry in layer.entries):
        stop = start + entry.size
        if entry.trained and len(entry.shape) >= dimensions:
            # An equal cut may contain only part of a tensor.
            total += max(0, min(stop, block.stop) - max(start, block.start))
        start = stop
    return total
