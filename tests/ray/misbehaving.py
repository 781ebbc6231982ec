"""A client that hangs, or ends its process, in Ray's workers. Its samples are marked."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raybcgd import Dataset, Partitioner

CLIENTS = 6
CULPRIT = 3


class ByIndex(Partitioner):
    """Sample k belongs to client k modulo the number of clients."""

    def owners(self, targets: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
        return np.arange(len(targets)) % self.clients


def marked() -> Dataset:
    """Return random samples in which the first feature of the culprit's is positive."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(CLIENTS * 20 + 30, 8)).astype(np.float32)
    targets = rng.integers(3, size=len(inputs))
    inputs[:, 0] = -5.0
    inputs[CULPRIT : CLIENTS * 20 : CLIENTS, 0] = 5.0
    end = CLIENTS * 20
    return Dataset.from_tensors(inputs[:end], targets[:end], inputs[end:], targets[end:], classes=3)


class Misbehaving(nn.Sequential):
    """A linear model. When it trains on the culprit's samples in a worker, it does what `how` says."""

    def __init__(self, how: str) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(8, 3))
        self.how = how

    def forward(self, input: Tensor) -> Tensor:
        if self.training and "RAY_RAYLET_PID" in os.environ and bool((input[:, 0] > 0).any()):
            misbehave(self.how)
        output: Tensor = super().forward(input)
        return output


class Unstartable(Misbehaving):
    """A model that ends the worker which reads it, until the files in a folder are used up."""

    def __init__(self, folder: str) -> None:
        super().__init__("")
        self.folder = folder

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for path in Path(self.folder).iterdir() if "RAY_RAYLET_PID" in os.environ else ():
            path.unlink()
            os._exit(3)


def misbehave(how: str) -> Any:
    if how == "hang":
        time.sleep(10_000)
    elif how == "die":
        os._exit(3)
    elif how == "exit":
        raise SystemExit(3)
    elif how == "interrupt":
        raise KeyboardInterrupt


def loss_that_dies_once(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy. The first worker that computes it dies; the file in MARK_OF_DEATH says that one did."""
    mark = Path(os.environ.get("MARK_OF_DEATH", "/nowhere"))
    if "RAY_RAYLET_PID" in os.environ and not mark.exists():
        mark.touch()
        os._exit(3)
    return nn.functional.cross_entropy(outputs, targets, reduction=reduction)
