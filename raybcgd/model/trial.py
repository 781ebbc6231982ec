"""Try a model and a loss on two samples before a run, to report in one line what does not fit."""

import logging
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from raybcgd.errors import ConfigError, own_line, raised_by_user
from raybcgd.model.outputs import logits_of
from raybcgd.model.settings import LOSSES

log = logging.getLogger(__name__)


class Tried(NamedTuple):
    """Texts for error messages: the model, the fix if it does not accept the inputs, and the loss."""

    model: str
    """The setting and its value, or the module that the user passed."""
    fix: str
    loss: str


def try_out(
    module: nn.Module,
    loss: Callable[..., Any],
    samples: tuple[Tensor, Tensor],
    classes: int,
    names: Tried,
    bf16: bool = False,
) -> None:
    """Raise an error if the module or the loss cannot evaluate or train on two samples. The module is changed.

    `samples` are inputs and targets.
    """
    inputs, targets = samples
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # training raises them again
        for training in (False, True):
            module.train(training)
            with torch.set_grad_enabled(training):
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16 and training):
                    outputs = _outputs(module, inputs, names)
                outputs = outputs.float() if bf16 else outputs
                if names.loss == "cross_entropy":
                    _check_width(outputs, classes, names.model)
                _check_loss(loss, outputs, targets, classes, names.loss)
        if not outputs.requires_grad:
            raise ConfigError(
                f"{names.model}: its outputs do not depend on its trainable parameters; remove `detach` and "
                "`no_grad` from its forward pass"
            )


def _outputs(module: nn.Module, inputs: Tensor, names: Tried) -> Tensor:
    name = names.model
    try:
        returned = module(inputs)
    # Custom code may raise anything.
    except Exception as error:
        shape = "x".join(str(n) for n in inputs.shape[1:])
        mode = "in training mode, " if module.training else ""
        if not _refuses_inputs(error):
            raise ConfigError(
                f"{name} fails in its forward pass: {mode}{own_line(error)}; fix it (the inputs have shape {shape})"
            ) from error
        if inputs.dtype == torch.int64:
            raise ConfigError(
                f"{name} does not accept {shape} tokens: {mode}{own_line(error)}; integer inputs are "
                "tokens; use floats, or uint8 for images, or a model with an embedding for all tokens"
            ) from error
        raise ConfigError(
            f"{name} does not accept inputs of shape {shape}: {mode}{own_line(error)}; {names.fix}"
        ) from error
    try:
        outputs = logits_of(returned)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from None
    if len(outputs.shape) == 0 or len(outputs) != len(inputs):
        raise ConfigError(
            f"{name} returns shape {tuple(outputs.shape)} for {len(inputs)} samples; return one row per sample"
        )
    if not outputs.is_floating_point():
        raise ConfigError(f"{name} returns {outputs.dtype}; return logits, which are floats")
    if not bool(torch.isfinite(outputs).all()):
        raise ConfigError(
            f"{name} returns NaN or infinity for the first training samples; check its initial "
            "parameters and its forward pass"
        )
    return outputs


def _refuses_inputs(error: Exception) -> bool:
    """Return whether a layer refused its inputs. Otherwise, the error is in the user's own code."""
    return isinstance(error, (RuntimeError, ValueError, IndexError)) and not raised_by_user(error)


def _check_width(outputs: Tensor, classes: int, name: str) -> None:
    """Raise an error if there are fewer outputs than classes, and warn if there are more.

    Further outputs may be intended: a pre-trained model has them, and the training data may lack the last classes.
    """
    width = outputs.shape[-1] if outputs.dim() > 1 else 1
    found = f"{name} returns {width} output{'s' if width > 1 else ''} per sample, but the data has {classes} classes"
    if width < classes:
        binary = ' or set model.loss = "binary_cross_entropy",' if (width, classes) == (1, 2) else ""
        raise ConfigError(f"{found}; return one output per class,{binary} or correct the labels")
    if width > classes:
        _warn(f"note: {found}; return one output per class, or set data.classes (from Python: classes=) to {width}")


@cache
def _warn(text: str) -> None:
    """Log a warning once per process: a comparison tries the model several times."""
    log.warning("%s", text)


def _check_loss(loss: Callable[..., Any], outputs: Tensor, targets: Tensor, classes: int, name: str) -> None:
    fix = "choose another loss, or a model with other outputs"
    if name not in LOSSES:
        fix = 'fix it; it is called as loss(outputs, targets, reduction="none" or "mean")'
    for reduction, shape in (("none", (len(outputs),)), ("mean", ())):
        try:
            value = loss(outputs, targets, reduction=reduction)
        # Custom code may raise anything.
        except Exception as error:
            raise ConfigError(
                f'model.loss = "{name}" does not accept outputs of shape {tuple(outputs.shape)[1:]} per sample with '
                f"{classes} classes: {own_line(error)}; {fix}"
            ) from error
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if found != shape:
            what = "one value per sample" if shape else "their mean"
            raise ConfigError(
                f'model.loss = "{name}" with reduction="{reduction}" returns {found} for {len(outputs)} samples; '
                f"return {what}, as a tensor of shape {shape}"
            )
