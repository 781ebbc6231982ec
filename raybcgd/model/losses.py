"""The losses by name, all with the signature of torch.nn.functional: (outputs, targets, reduction)."""

from collections.abc import Callable

from torch import Tensor, nn


def binary_cross_entropy(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Logistic loss of one logit a sample, for targets 0 and 1."""
    logits = outputs.squeeze(-1)
    return nn.functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction=reduction)


def sigmoid(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """The smooth non-convex stand-in for the 0-1 loss: 1/(1 + exp(b z)), b = -1 or 1 for the targets 0 and 1."""
    logits = outputs.squeeze(-1)
    losses = ((1 - 2 * targets.to(logits.dtype)) * logits).sigmoid()
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": nn.functional.cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "sigmoid": sigmoid,
}
ONE_LOGIT = ("binary_cross_entropy", "sigmoid")
"""Losses of a model with one output."""
