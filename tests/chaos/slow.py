"""The model of the chaos trials: slow without using the CPU, and able to hang once."""

import contextlib
import ctypes
import os
import time

import torch
from torch import Tensor, nn

STEP_SECONDS = 0.01
HANG = "RAYBCGD_CHAOS_HANG"
"""Environment variable with the path of a file. The client that removes it hangs."""


class Slow(nn.Sequential):
    """A small network for the digits. On Ray, every forward pass sleeps; the bits are the same."""

    def forward(self, input: Tensor) -> Tensor:
        if "RAY_RAYLET_PID" in os.environ:
            time.sleep(STEP_SECONDS)
            with contextlib.suppress(OSError):
                os.unlink(os.environ.get(HANG, ""))
                ctypes.PyDLL(None).sleep(100_000)  # holds the GIL, like a client that is stuck in C code
        output: Tensor = super().forward(input)
        return output


def slow(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the model."""
    torch.manual_seed(0)
    hidden = [nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()]
    return Slow(nn.Flatten(), *hidden, nn.Linear(16, classes))
