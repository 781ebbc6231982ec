"""Conformal prediction (Sadinle et al., 2019): label sets that contain the true label with a chosen probability."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Conformal(NamedTuple):
    """Prediction sets, evaluated on data that was not used to find their threshold."""

    level: float
    """kappa, the requested coverage."""
    threshold: float
    """A label is in the set if 1 - its probability is at most this."""
    coverage: float
    """Fraction of samples whose set contains their label."""
    mean_size: float
    """Mean number of labels per set."""
    samples: int
    calibration_samples: int


def threshold(scores: np.ndarray, level: float) -> float:
    """Return the ceil((n + 1) * level)-th smallest of n scores. With probability `level`, a new score is no larger.

    If n is too small for the level, return 1, so that every set contains all labels.
    """
    rank = math.ceil((len(scores) + 1) * level)
    return float(np.partition(scores, rank - 1)[rank - 1]) if rank <= len(scores) else 1.0


def conformal(probabilities: np.ndarray, targets: np.ndarray, calibration: np.ndarray, level: float) -> Conformal:
    """Find the threshold on the samples in the mask `calibration`, and evaluate the sets on the others."""
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
    """Return label probabilities from outputs, one row per sample. A single output is the logit of label 1."""
    if outputs.dim() > 1 and outputs.shape[-1] > 1:
        return outputs.softmax(-1)
    positive = outputs.reshape(-1).sigmoid()
    return torch.stack([1 - positive, positive], dim=-1)
