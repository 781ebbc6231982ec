"""Models and losses by name: the papers', and any other by "package.module:callable"."""

import inspect
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from pydantic import Field, ValidationError, model_validator, validate_call
from torch import Tensor, nn

from raybcgd.errors import ConfigError
from raybcgd.model import convolutional, dense, residual, transformers, vgg
from raybcgd.model.losses import LOSSES, ONE_LOGIT
from raybcgd.model.references import imported, is_reference
from raybcgd.randomness import seed_of
from raybcgd.section import Section

Builder = Callable[..., nn.Module]

MODELS: dict[str, Builder] = {
    "mlp": dense.mlp,
    "logistic": dense.linear,
    "sigmoid_erm": dense.linear,
    "lenet5": convolutional.lenet5,
    "cnn": convolutional.cnn,
    "vgg11": vgg.vgg11,
    "vgg19": vgg.vgg19,
    "resnet8": residual.resnet8,
    "resnet18": residual.resnet18,
    "vit_tiny": transformers.vit_tiny,
    "vit_b_16": transformers.vit_b_16,
}
"""The zoo: builder(input_shape, classes, **options)."""


class ModelConfig(Section):
    """`[model]`: what is trained, and on which loss."""

    name: str = "mlp"
    """A model of the zoo (mlp, logistic, sigmoid_erm, lenet5, cnn, vgg11, vgg19, resnet8, resnet18, vit_tiny, vit_b_16)
    or "package.module:callable", called with (input_shape, classes, **options), or with the options alone if it takes
    neither."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the builder, e.g. `hidden = [64, 64]` for mlp."""
    dtype: Literal["float32", "float64"] = "float32"
    """The type of parameters, gradients and inputs."""
    loss: str = "cross_entropy"
    """`cross_entropy`; `binary_cross_entropy` or `sigmoid` for two classes and one logit; or "package.module:callable"
    with the signature of torch.nn.functional: (outputs, targets, reduction="mean" | "none")."""

    @model_validator(mode="before")
    @classmethod
    def _loss_of_the_model(cls, values: Any) -> Any:
        # The sigmoid loss is what makes a linear model "sigmoid ERM".
        if isinstance(values, dict) and values.get("name") == "sigmoid_erm":
            return {"loss": "sigmoid", **values}
        return values


def build(config: ModelConfig, input_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """The model that `[model]` describes, initialised from the seed alone; torch's own generator is left as it was."""
    if is_reference(config.name):
        make = _user_model(config, input_shape, classes)
    else:
        make = _zoo_model(config, input_shape, classes)
    with torch.random.fork_rng(devices=[]):
        # The CPU's generator alone: torch.manual_seed would reseed the GPUs' too, which are not forked here.
        torch.default_generator.manual_seed(seed_of(seed, "model"))
        module = make()
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f'model.name = "{config.name}" gave a {type(module).__name__}; the callable must return a torch.nn.Module'
        )
    return module.to(getattr(torch, config.dtype))


def loss_function(config: ModelConfig) -> Callable[..., Tensor]:
    """The loss (outputs, targets, reduction="mean" | "none") that `[model]` names."""
    if is_reference(config.loss):
        return imported(config.loss, "model.loss")
    if config.loss not in LOSSES:
        raise ConfigError(
            f'model.loss = "{config.loss}" is unknown; use {", ".join(LOSSES)} or "package.module:callable"'
        )
    return LOSSES[config.loss]


def outputs_of(config: ModelConfig, classes: int) -> int:
    """How many outputs the model needs: one for a loss on a single logit, else one a class."""
    if config.loss not in ONE_LOGIT:
        if config.name == "sigmoid_erm":
            raise ConfigError(f'model.name = "sigmoid_erm" has one output; set model.loss to {" or ".join(ONE_LOGIT)}')
        return classes
    if classes > 2:
        raise ConfigError(
            f'model.loss = "{config.loss}" is for two classes, and the data has {classes}; set model.loss = '
            '"cross_entropy" or choose a binary task'
        )
    return 1


def _zoo_model(config: ModelConfig, input_shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
    if config.name not in MODELS:
        raise ConfigError(
            f'model.name = "{config.name}" is unknown; use {", ".join(MODELS)} or "package.module:callable"'
        )
    builder = MODELS[config.name]
    outputs = outputs_of(config, classes)
    _check_options(config, accepted=list(inspect.signature(builder).parameters)[2:])

    def make() -> nn.Module:
        try:
            return validate_call(builder)(input_shape, outputs, **config.options)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(
                f"model.options.{where} = {first['input']!r} of {config.name}: {first['msg']}; correct it"
            ) from error

    return make


def _user_model(config: ModelConfig, input_shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
    builder = imported(config.name, "model.name")
    signature = inspect.signature(builder)
    parameters = signature.parameters
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    given: tuple[Any, ...] = ()
    # A callable of one's own may know its shapes already; it then takes nothing, or options only.
    if len([name for name in required if name not in config.options]) >= 2 or "input_shape" in parameters:
        given = (input_shape, outputs_of(config, classes))
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        _check_options(config, accepted=list(parameters)[len(given) :])
    try:
        signature.bind(*given, **config.options)
    except TypeError as error:
        raise ConfigError(
            f'model.name = "{config.name}" cannot be called ({error}); give what it needs in model.options'
        ) from error

    def make() -> nn.Module:
        try:
            return cast("nn.Module", builder(*given, **config.options))
        except Exception as error:
            cause = f"{type(error).__name__}: {error}".strip().split("\n")[0]
            raise ConfigError(f'model.name = "{config.name}" fails ({cause}); mend it, or model.options') from error

    return make


def _check_options(config: ModelConfig, accepted: list[str]) -> None:
    unknown = [name for name in config.options if name not in accepted]
    if unknown:
        takes = f"accepts {', '.join(accepted)}" if accepted else "accepts none"
        raise ConfigError(f"model.options has {', '.join(unknown)}, but {config.name} {takes}; remove or rename it")
