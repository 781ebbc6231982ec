"""Models that fail: anywhere but on the stand-in, or on a poisonous sample."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from raybcgd.model.dense import mlp


class OnTheDevice(nn.Module):
    """The small network of the other tests, with a check of the device of each training batch."""

    def __init__(self, input_shape: tuple[int, ...], classes: int, **options: Any) -> None:
        super().__init__()
        self.net = mlp(input_shape, classes, **options)

    def forward(self, x: Tensor) -> Tensor:
        # The trials before a run are on the CPU, with at most three samples.
        if self.training and len(x) > 3 and x.device != torch.device("standin:0"):
            raise RuntimeError(f"a batch on {x.device}")
        outputs: Tensor = self.net(x)
        return outputs


class BreaksOnce(nn.Module):
    """The small network of the other tests. The first evaluation that finds the file `fuse` breaks its device."""

    def __init__(self, input_shape: tuple[int, ...], classes: int, fuse: str, **options: Any) -> None:
        super().__init__()
        self.net, self.fuse = mlp(input_shape, classes, **options), Path(fuse)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.net(x)
        if not self.training and x.device.type == "standin" and self.fuse.exists():
            self.fuse.unlink(missing_ok=True)
            outputs = outputs.new_zeros(3)[torch.full((1,), 1000, device=x.device)]
        return outputs


class Poisonous(nn.Module):
    """The small network of the other tests. In training on the device, a huge sample makes an index out of bounds."""

    def __init__(self, input_shape: tuple[int, ...], classes: int, **options: Any) -> None:
        super().__init__()
        self.net = mlp(input_shape, classes, **options)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.net(x)
        if self.training and x.device.type == "standin":  # not in the trials before a run
            huge = (x.flatten(1).amax(1) > 20).long() * 1000
            outputs = outputs + outputs.new_zeros(3)[huge].sum()
        return outputs
