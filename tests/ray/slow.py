"""A model that is slow on Ray without using the CPU, so that hosts still start quickly on a busy machine."""

import os
import time

import torch
from torch import Tensor, nn

SECONDS = 0.01


class Slow(nn.Sequential):
    """A small network for the digits. In processes started by Ray, every forward pass sleeps; the bits are the same."""

    def __init__(self, width: int = 16, seconds: float = SECONDS) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 16), nn.ReLU()]
        super().__init__(nn.Flatten(), *layers, nn.Linear(16, 10))
        self._seconds = seconds

    def forward(self, input: Tensor) -> Tensor:
        if "RAY_RAYLET_PID" in os.environ:
            time.sleep(self._seconds)
        output: Tensor = super().forward(input)
        return output
