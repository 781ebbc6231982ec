"""Build the model and the loss that `[model]` names, built-in or custom."""

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from pydantic import ValidationError, validate_call
from torch import Tensor, nn

from raybcgd.errors import ConfigError, first_line
from raybcgd.model.losses import ONE_LOGIT
from raybcgd.model.settings import LOSSES, MODELS, ModelConfig
from raybcgd.randomness import seed_of


def build(config: ModelConfig, input_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Build the model of `[model]`. Its initial parameters depend only on the seed. Torch's generator is unchanged."""
    maker = _builtin_model if config.name in MODELS else _custom_model
    with MODELS.running(config.name), torch.random.fork_rng(devices=[]):
        make = maker(config, input_shape, classes)
        # Only the CPU's generator: torch.manual_seed would also reseed the GPUs, which are not forked here.
        torch.default_generator.manual_seed(seed_of(seed, "model"))
        try:
            module = make()
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError) or "allocate memory" in str(error):
                raise ConfigError(
                    f'model.name = "{MODELS.name_of(config.name)}" does not fit into memory ({first_line(error)}); '
                    "choose a smaller model, or smaller model.options"
                ) from None
            raise
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f'model.name = "{MODELS.name_of(config.name)}" returned {type(module).__name__}; return a torch.nn.Module'
        )
    return module.to(getattr(torch, config.dtype))


def loss_function(config: ModelConfig) -> Callable[..., Tensor]:
    """Return the loss (outputs, targets, reduction="mean" | "none") that `[model]` names."""
    return cast("Callable[..., Tensor]", LOSSES.resolve(config.loss))


def outputs_of(config: ModelConfig, classes: int) -> int:
    """Return the number of model outputs: one for regression or a loss on a single logit, else one per class."""
    if classes == 0:
        return 1
    loss = LOSSES.name_of(config.loss)
    if loss not in ONE_LOGIT:
        if config.name == "sigmoid_erm":
            raise ConfigError(f'model.name = "sigmoid_erm" has one output; set model.loss to {" or ".join(ONE_LOGIT)}')
        return classes
    if classes > 2:
        raise ConfigError(
            f'model.loss = "{loss}" needs two classes, but the data has {classes}; set model.loss = '
            '"cross_entropy" or data.task = "binary"'
        )
    return 1


def _builtin_model(config: ModelConfig, input_shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
    builder = MODELS.resolve(config.name)
    outputs = outputs_of(config, classes)
    _check_options(config, accepted=list(inspect.signature(builder).parameters)[2:])

    def make() -> nn.Module:
        try:
            return cast("nn.Module", validate_call(builder)(input_shape, outputs, **config.options))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(
                f"model.options.{where} = {first['input']!r} of {config.name}: {first['msg']}; correct it"
            ) from error

    return make


def _custom_model(config: ModelConfig, input_shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
    builder, name = MODELS.resolve(config.name), MODELS.name_of(config.name)
    if isinstance(builder, nn.Module):
        raise ConfigError(f"model.name = {name} is a module, not a function that returns one; pass it as run(module=…)")
    signature = inspect.signature(builder)
    parameters = signature.parameters
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    given: tuple[Any, ...] = ()
    # A callable that takes neither shape nor classes has no arguments other than options.
    if len([name for name in required if name not in config.options]) >= 2 or "input_shape" in parameters:
        given = (input_shape, outputs_of(config, classes))
    try:
        signature.bind_partial(*given)
    except TypeError as error:
        raise ConfigError(
            f'model.name = "{name}" cannot be called as f(input_shape, classes, **options) ({error}); accept '
            "input_shape and classes as its first two arguments"
        ) from error
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        _check_options(config, accepted=list(parameters)[len(given) :])
    try:
        signature.bind(*given, **config.options)
    except TypeError as error:
        raise ConfigError(
            f'model.name = "{name}" cannot be called ({error}); set its arguments in model.options'
        ) from error
    return lambda: cast("nn.Module", builder(*given, **config.options))


def _check_options(config: ModelConfig, accepted: list[str]) -> None:
    unknown = [name for name in config.options if name not in accepted]
    if unknown:
        has = f"model.options has {', '.join(unknown)}, but {MODELS.name_of(config.name)}"
        if not accepted:
            raise ConfigError(
                f"{has} accepts no options; remove them, or set model.options = {{}} if they are inherited"
            )
        raise ConfigError(f"{has} accepts {', '.join(accepted)}; correct the names")
