"""Linear CKA (Kornblith et al., ICML 2019): the similarity of two models' features, up to rotation and scale."""

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from raybcgd.model.flat import FlatModel


def gram(features: Tensor) -> Tensor:
    """Return the Gram matrix of the centred samples. It suffices for CKA, and is small even with many features."""
    rows = features.flatten(1).double()
    rows = rows - rows.mean(0)
    return rows @ rows.T


def linear_cka(a: Tensor, b: Tensor) -> float:
    """Return <A, B> / (|A| |B|) = |Y'X|^2 / (|X'X| |Y'Y|), from the Gram matrices of features X, Y; 0 if one is 0."""
    size = float(a.norm() * b.norm())
    return float((a * b).sum()) / size if size > 0 else 0.0


@torch.no_grad()
def model_cka(flat: FlatModel, models: Sequence[Tensor], inputs: Tensor) -> dict[str, Tensor]:
    """Return a matrix per layer: the CKA between all pairs of models (flat vectors) on some inputs."""
    saved, was_training = flat.vector.clone(), flat.module.training
    flat.module.eval()
    grams: list[dict[str, Tensor]] = []
    for model in models:
        flat.vector.copy_(model)
        grams.append({name: gram(outputs) for name, outputs in layer_outputs(flat, inputs).items()})
    flat.vector.copy_(saved)
    flat.module.train(was_training)
    return {
        name: torch.tensor([[linear_cka(one[name], other[name]) for other in grams] for one in grams])
        for name in (grams[0] if grams else {})
    }


@torch.no_grad()
def layer_outputs(flat: FlatModel, inputs: Tensor) -> dict[str, Tensor]:
    """Return the output of every layer of the layout, in the order of the forward pass."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str, output: object) -> None:
        if isinstance(output, Tensor) and len(output) == len(inputs):
            outputs[name] = output.flatten(1)

    modules = dict(flat.module.named_modules())
    with ExitStack() as stack:
        for layer in flat.layout.order:
            module = modules.get(layer.name, flat.module)  # parameters of the root module have no path
            hook = module.register_forward_hook(lambda _m, _i, output, name=layer.name: keep(name, output))
            stack.callback(hook.remove)
        flat.module(inputs)
    return outputs


def mean_similarity(matrix: Tensor) -> float:
    """Return the mean similarity over all pairs of different models."""
    count = len(matrix)
    return float((matrix.sum() - matrix.diagonal().sum()) / (count * (count - 1)))
