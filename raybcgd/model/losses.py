"""Losses with the same signature as those in torch.nn.functional: (outputs, targets, reduction)."""

from torch import Tensor, nn


def cross_entropy(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy of class labels, with the classes in the last dimension. In a stack, it is faster than torch's."""
    losses = -outputs.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
    return _reduced(losses, reduction)


def binary_cross_entropy(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Logistic loss on one logit per sample, for targets 0 and 1."""
    logits = outputs.squeeze(-1)
    return nn.functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction=reduction)


def sigmoid(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Smooth non-convex surrogate of the 0-1 loss: 1/(1 + exp(b z)), with b = -1 or 1 for targets 0 or 1."""
    logits = outputs.squeeze(-1)
    losses = ((1 - 2 * targets.to(logits.dtype)) * logits).sigmoid()
    return _reduced(losses, reduction)


def mse(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Squared error, for regression."""
    return _reduced((outputs.reshape(targets.shape) - targets).square(), reduction)


def l1(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Absolute error, for regression."""
    return _reduced((outputs.reshape(targets.shape) - targets).abs(), reduction)


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


ONE_LOGIT = ("binary_cross_entropy", "sigmoid")
"""Losses that need a model with one output."""
OF_LABELS = ("cross_entropy", *ONE_LOGIT)
"""Losses that need labels."""
OF_NUMBERS = ("mse", "l1")
"""Losses that need float targets."""
