"""Try a model and a loss on two samples before a run, so that what does not fit ends in one line."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from raybcgd.errors import ConfigError, first_line
from raybcgd.model.outputs import logits_of


def try_out(
    module: nn.Module,
    loss: Callable[..., Any],
    samples: tuple[Tensor, Tensor],
    classes: int,
    names: tuple[str, str],
    bf16: bool = False,
) -> None:
    """Raise an error if the module or the loss cannot evaluate or train on two samples. The module is changed.

    `samples` are inputs and labels; `names` are those of the model and the loss in the config.
    """
    inputs, targets = samples
    model, criterion = names
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # they come again in training
        for training in (False, True):
            module.train(training)
            with torch.set_grad_enabled(training):
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16 and training):
                    outputs = _outputs(module, inputs, model)
                outputs = outputs.float() if bf16 else outputs
                _check_loss(loss, outputs, targets, classes, criterion)
        if not outputs.requires_grad:
            raise ConfigError(
                f'model.name = "{model}": its outputs do not depend on its trainable parameters; remove `detach` and '
                "`no_grad` from its forward pass"
            )


def _outputs(module: nn.Module, inputs: Tensor, name: str) -> Tensor:
    try:
        returned = module(inputs)
    # Custom code may raise anything.
    except Exception as error:
        shape = "x".join(str(n) for n in inputs.shape[1:])
        mode = "in training mode, " if module.training else ""
        if inputs.dtype == torch.int64:
            raise ConfigError(
                f'model.name = "{name}" does not accept {shape} tokens: {mode}{first_line(error)}; integer inputs are '
                "tokens; use floats, or uint8 for images, or a model with an embedding for all tokens"
            ) from None
        raise ConfigError(
            f'model.name = "{name}" does not accept inputs of shape {shape}: {mode}{first_line(error)}; '
            "choose another model, or set model.options"
        ) from None
    try:
        outputs = logits_of(returned)
    except TypeError as error:
        raise ConfigError(f'model.name = "{name}": {error}') from None
    if len(outputs.shape) == 0 or len(outputs) != len(inputs):
        raise ConfigError(
            f'model.name = "{name}" returns shape {tuple(outputs.shape)} for {len(inputs)} samples; return one row per '
            "sample"
        )
    if not outputs.is_floating_point():
        raise ConfigError(f'model.name = "{name}" returns {outputs.dtype}; return logits, which are floats')
    if not bool(torch.isfinite(outputs).all()):
        raise ConfigError(
            f'model.name = "{name}" returns NaN or infinity for the first training samples; check its initial '
            "parameters and its forward pass"
        )
    return outputs


def _check_loss(loss: Callable[..., Any], outputs: Tensor, targets: Tensor, classes: int, name: str) -> None:
    for reduction, shape in (("none", (len(outputs),)), ("mean", ())):
        try:
            value = loss(outputs, targets, reduction=reduction)
        # Custom code may raise anything.
        except Exception as error:
            raise ConfigError(
                f'model.loss = "{name}" does not accept outputs of shape {tuple(outputs.shape)[1:]} per sample with '
                f"{classes} classes: {first_line(error)}; choose another loss, or a model with other outputs"
            ) from None
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if found != shape:
            what = "one value per sample" if shape else "their mean"
            raise ConfigError(
                f'model.loss = "{name}" with reduction="{reduction}" returns {found} for {len(outputs)} samples; '
                f"return {what}, as a tensor of shape {shape}"
            )
