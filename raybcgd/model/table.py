"""A division as a table, for `raybcgd plan`."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from raybcgd.model.blocks import Block, BlockLayout
from raybcgd.model.layers import frozen_parameters


class Row(NamedTuple):
    """One block of a division."""

    block: str
    layers: tuple[str, ...]
    parameters: int
    """Coordinates of the flat vector: trained parameters and floating buffers."""
    bytes: int
    share: float
    """The part of d, from 0 to 1."""
    weights: int
    """Entries of weight matrices and kernels alone, without biases and norm layers, as the papers' tables count."""


@dataclass(frozen=True)
class UploadSaving:
    """What freezing (LoRA) saves: the mean upload of a client in a round, its block and the shared one."""

    frozen: int
    """Parameters that stay as they are."""
    upload_bytes: float
    whole_model_bytes: int
    """An upload of every coordinate, frozen or not."""

    @property
    def factor(self) -> float:
        """How many times smaller the upload is."""
        return self.whole_model_bytes / self.upload_bytes


def division_table(layout: BlockLayout, dtype: torch.dtype | str) -> list[Row]:
    """The rows of a division, the shared block last if there is one."""
    return [
        Row(
            block=block.name,
            layers=block.layers,
            parameters=block.size,
            bytes=block.size * _itemsize(dtype),
            share=block.size / layout.size,
            weights=_weights_in(layout, block),
        )
        for block in layout.all_blocks
    ]


def upload_saving(module: nn.Module, layout: BlockLayout, dtype: torch.dtype | str) -> UploadSaving:
    """What frozen parameters and blocks save on the way up, when every block is dealt equally often."""
    own = sum(block.size + layout.shared.size for block in layout.blocks) / len(layout.blocks)
    frozen = frozen_parameters(module)
    return UploadSaving(frozen, own * _itemsize(dtype), (layout.size + frozen) * _itemsize(dtype))


def _itemsize(dtype: torch.dtype | str) -> int:
    chosen: torch.dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    return chosen.itemsize


def _weights_in(layout: BlockLayout, block: Block) -> int:
    total = start = 0
    for layer in layout.order:
        for entry in layer.entries:
            stop = start + entry.size
            if entry.trained and len(entry.shape) >= 2:
                # An equal cut may hold a part of a tensor only.
                total += max(0, min(stop, block.stop) - max(start, block.start))
            start = stop
    return total
