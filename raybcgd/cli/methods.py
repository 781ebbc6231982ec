"""`raybcgd methods`: what can be put into `[algorithm] name`."""

import torch
from rich.table import Table
from torch import nn

from raybcgd.algorithms import METHODS, Algorithm
from raybcgd.cli.shared import ends_clearly, out
from raybcgd.model.blocks import BlockLayout, divide
from raybcgd.model.settings import BlocksConfig
from raybcgd.wire.codecs import Raw
from raybcgd.wire.upload import Wire

_BLOCKS = 5
_WIDTH = 100


@ends_clearly
def methods() -> None:
    """List the methods: paper, idea, and what each uploads and keeps."""
    layout = example_layout()
    table = Table()
    table.add_column("name")
    table.add_column("method", ratio=1)
    for heading in ("upload", "download", "keeps"):
        table.add_column(heading, justify="right")
    for name, kind in METHODS.items():
        algorithm = kind()
        table.add_row(
            name,
            (kind.__doc__ or "").strip().split("\n")[0],
            f"{upload_d(algorithm, layout):.2f}",
            f"{_wire(algorithm, layout).download.floats / layout.size:.0f}",
            f"{client_d(algorithm, layout):.0f}",
        )
    out.print(table)
    shared = layout.shared.size / layout.size
    out.print(
        "What a sampled client uploads and downloads in a round and keeps between rounds is in units of the model's "
        f"size d, for the default settings, {_BLOCKS} equal blocks and a shared one of {shared:.0%} of d.",
        highlight=False,
    )


def example_layout() -> BlockLayout:
    """Equal blocks and a small shared one."""
    layers = [nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_BLOCKS)]
    return divide(nn.Sequential(*layers, nn.Linear(_WIDTH, 10, bias=False)), BlocksConfig(count=_BLOCKS))


def upload_d(algorithm: Algorithm, layout: BlockLayout) -> float:
    """The mean upload of a client in a round, in units of d, when every block is dealt equally often."""
    wire = _wire(algorithm, layout)
    blocks = range(len(layout.blocks)) if algorithm.blockwise else (None,)
    floats = [wire.upload(block).floats for block in blocks]
    return sum(floats) / len(floats) / layout.size


def client_d(algorithm: Algorithm, layout: BlockLayout) -> float:
    """What a client keeps between rounds, in units of d."""
    state = algorithm.client_init(torch.zeros(layout.size))
    return sum(float(vector.numel()) for vector in state) / layout.size


def _wire(algorithm: Algorithm, layout: BlockLayout) -> Wire:
    return Wire(algorithm, layout, Raw(), torch.float32)
