"""Metrics for `evaluation.metrics`: functions (outputs, targets) that return one number per sample."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from raybcgd.errors import ConfigError
from raybcgd.model.settings import METRICS


def top5(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 if the target is among the five highest outputs, else 0."""
    best = outputs.topk(min(5, outputs.shape[-1]), dim=-1).indices
    return (best == targets[:, None]).any(-1)


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The distance between output and target, for regression."""
    return (outputs.reshape(targets.shape) - targets).abs()


class Metrics:
    """The metrics that a config names."""

    def __init__(self, metrics: Sequence[str | Callable[..., Any]]) -> None:
        self._metrics = [(METRICS.name_of(metric), METRICS.resolve(metric)) for metric in metrics]

    def sums(self, outputs: Tensor, targets: Tensor) -> tuple[float, ...]:
        """Return the sum of each metric over some samples."""
        return tuple(self._sum(name, metric, outputs, targets) for name, metric in self._metrics)

    def _sum(self, name: str, metric: Callable[..., Any], outputs: Tensor, targets: Tensor) -> float:
        with METRICS.running(name):
            values = torch.as_tensor(metric(outputs, targets))
        if values.shape != targets.shape[:1]:
            raise ConfigError(
                f'evaluation.metrics: "{name}" returned shape {tuple(values.shape)} for {len(targets)} samples; '
                "return one number per sample"
            )
        return float(values.double().sum())
