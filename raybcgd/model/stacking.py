"""Whether a model can train in a stack of clients: a check of its parts, and one trial."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from raybcgd.errors import named_line
from raybcgd.model.flat import FlatModel
from raybcgd.model.layers import layers_of
from raybcgd.model.outputs import logits_of


def not_stackable(module: nn.Module) -> str | None:
    """Return why a module cannot train in a stack, judged by its parts. None: they do not rule it out."""
    if any(not entry.trained for layer in layers_of(module) for entry in layer.entries):
        return "it has buffers that training changes"
    for child in module.modules():
        if isinstance(child, nn.modules.dropout._DropoutNd) or "StochasticDepth" in type(child).__name__:
            return "it draws random numbers in its forward pass"
    return None


def fails_in_stack(flat: FlatModel, loss: Callable[..., Tensor], inputs: Tensor, targets: Tensor) -> str | None:
    """Train one step of two clients in a stack, and one of them alone. Return what goes wrong, or None.

    The last sample is padding in the stack, which must not change the gradient. Torch's generator is unchanged.
    """
    flat.module.train()

    def one(vector: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        outputs = logits_of(functional_call(flat.module, flat.named(vector), (inputs,)))
        return (loss(outputs, targets, reduction="none") * weights).sum() / weights.sum()

    with torch.random.fork_rng(devices=[]):
        try:
            loss(logits_of(flat.module(inputs[:-1])), targets[:-1]).backward()  # type: ignore[no-untyped-call]
        except Exception:
            return None  # it fails without a stack too, which other checks report
        weights = flat.vector.new_ones(len(inputs))
        weights[-1] = 0
        pairs = [value.expand(2, *value.shape) for value in (flat.vector, inputs, targets, weights)]
        try:
            gradients, _ = vmap(grad_and_value(one))(*pairs)
        except Exception as error:  # the module is the user's code
            reason = named_line(error).partition(". ")[0]
            return f"its forward pass fails there ({reason})"
    scale = float(flat.gradient.abs().max()) or 1.0
    same = torch.isclose(gradients, flat.gradient, rtol=1e-2, atol=1e-4 * scale, equal_nan=True)
    if not bool(same.all()):
        return "its gradients differ from those outside a stack; it or the loss mixes the samples of a batch"
    return None
