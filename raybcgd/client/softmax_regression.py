"""The gradients of softmax regression in closed form, for a stack of clients: half the time of vmap."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from raybcgd.model.flat import FlatModel
from raybcgd.model.losses import cross_entropy


class SoftmaxRegression:
    """The gradients and losses of a linear model with cross-entropy, one row per client. See `StackGradient`.

    With the logits Z = W X^T + b of a client and its one-hot labels Y, the gradient is (softmax(Z) - Y) X for W, and
    the sum over the samples of softmax(Z) - Y for b. Classes come before samples, because torch computes both W X^T and
    a softmax over the first dimension faster than their transposes.
    """

    def __init__(self, flat: FlatModel) -> None:
        self._places, linear = flat.places, _linear(flat.module)
        assert linear is not None, "the caller checks `is_softmax_regression`"
        self._shape = linear.weight.shape
        self._weight, self._bias = (f"1.{name}" for name in ("weight", "bias"))

    def __call__(self, y: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        samples, log_p = self._log_probabilities(y, inputs)
        losses, shares = _mean_losses(log_p, targets, weights)
        classes = torch.arange(log_p.shape[1], device=y.device)[:, None]
        one_hot = (targets[:, None] == classes).to(y.dtype)
        error = log_p.exp_().sub_(one_hot).mul_(shares[:, None])
        gradient = y.new_empty(y.shape)
        _products(error, samples, out=self._matrix(gradient))
        if self._bias in self._places:
            torch.sum(error, 2, out=gradient[:, self._places[self._bias]])
        return gradient, losses

    def losses(self, y: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return _mean_losses(self._log_probabilities(y, inputs)[1], targets, weights)[0]

    def _log_probabilities(self, y: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples as matrices, and the logarithms of the probabilities: [clients, classes, samples]."""
        samples = inputs.flatten(2)
        logits = _products(self._matrix(y), samples.transpose(1, 2))
        if self._bias in self._places:
            logits.add_(y[:, self._places[self._bias], None])
        return samples, logits.log_softmax(1)

    def _matrix(self, vectors: Tensor) -> Tensor:
        """Return the part of W in flat vectors: [clients, classes, features]."""
        return vectors[:, self._places[self._weight]].view(-1, *self._shape)


def is_softmax_regression(flat: FlatModel, loss: Callable[..., Tensor]) -> bool:
    """Return whether a model and a loss are softmax regression: `Flatten` and `Linear` with the built-in loss."""
    linear = _linear(flat.module)
    trained = set() if linear is None else {f"1.{name}" for name, _ in linear.named_parameters()}
    return loss is cross_entropy and bool(trained) and trained == set(flat.places)


def _linear(module: nn.Module) -> nn.Linear | None:
    """Return the only layer of a linear model. None for other models, and for those whose hooks may change outputs."""
    parts = [module, *module.children()]
    if [type(part) for part in parts] != [nn.Sequential, nn.Flatten, nn.Linear]:
        return None
    plain = vars(parts[1]).items() >= {"start_dim": 1, "end_dim": -1}.items()
    hooked = any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in parts)
    return parts[2] if plain and not hooked and isinstance(parts[2], nn.Linear) else None


def _products(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the products of two stacks of matrices. On a CPU, the bits of each do not depend on the others.

    There, NumPy multiplies: torch takes twice as long, because of the setting `MKL_CBWR`, and uses other kernels for
    stacks of one.
    """
    if a.device.type != "cpu":
        return torch.bmm(a, b, out=out)
    return torch.from_numpy(np.matmul(a.numpy(), b.numpy(), out=None if out is None else out.numpy()))


def _mean_losses(log_p: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the clients' mean losses, and the share of each sample in them."""
    totals = weights.sum(1, keepdim=True)
    losses = log_p.gather(1, targets[:, None]).squeeze(1)
    return (losses * weights).sum(1).neg_() / totals[:, 0], weights / totals
