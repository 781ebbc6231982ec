"""Conformal prediction (Sadinle et al., 2019): sets of labels that hold the true one with a probability one chooses."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Conformal(NamedTuple):
    """How prediction sets do on data that their threshold was not made from."""

    level: float
    """kappa, the coverage that was asked for."""
    threshold: float
    """A label is in the set when 1 - its probability is at most this."""
    coverage: float
    """The share of samples whose set holds their label."""
    mean_size: float
    """Labels in a set, on average: the fewer, the surer the model may be."""
    samples: int
    calibration_samples: int


def threshold(scores: np.ndarray, level: float) -> float:
    """The ceil((n + 1) * level)-th smallest of n calibration scores: with that probability a new one is no larger.

    1, so that sets hold every label, where n is too small to promise the level.
    """
    rank = math.ceil((len(scores) + 1) * level)
    return float(np.partition(scores, rank - 1)[rank - 1]) if rank <= len(scores) else 1.0


def conformal(probabilities: np.ndarray, targets: np.ndarray, calibration: np.ndarray, level: float) -> Conformal:
    """Find the threshold on the samples of a mask, and judge the sets on the others."""
    scores = 1 - probabilities
    of_label = scores[np.arange(len(targets)), targets]
    limit = threshold(of_label[calibration], level)
    held_out = ~calibration
    return Conformal(
        level=level,
        threshold=limit,
        coverage=float((of_label[held_out] <= limit).mean()),
        mean_size=float((scores[held_out] <= limit).sum(axis=1).mean()),
        samples=int(held_out.sum()),
        calibration_samples=int(calibration.sum()),
    )


def probabilities_of(outputs: Tensor) -> Tensor:
    """The labels' probabilities from a model's outputs, a row a sample; one output a sample is that of label 1."""
    if outputs.dim() > 1 and outputs.shape[-1] > 1:
        return outputs.softmax(-1)
    positive = outputs.reshape(-1).sigmoid()
    return torch.stack([1 - positive, positive], dim=-1)
