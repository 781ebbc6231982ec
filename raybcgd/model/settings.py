"""`[model]` and `[blocks]`: the model, and the division of its parameters into blocks."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, field_serializer, model_validator

from raybcgd.registry import Registry
from raybcgd.section import Section

MODELS = Registry(
    "model.name",
    {
        "mlp": "raybcgd.model.dense:mlp",
        "logistic": "raybcgd.model.dense:linear",
        "sigmoid_erm": "raybcgd.model.dense:linear",
        "lenet5": "raybcgd.model.convolutional:lenet5",
        "cnn": "raybcgd.model.convolutional:cnn",
        "vgg11": "raybcgd.model.vgg:vgg11",
        "vgg11-fedpvr": "raybcgd.model.vgg:vgg11_fedpvr",
        "vgg19": "raybcgd.model.vgg:vgg19",
        "resnet8": "raybcgd.model.residual:resnet8",
        "resnet18": "raybcgd.model.residual:resnet18",
        "vit_tiny": "raybcgd.model.transformers:vit_tiny",
        "vit_b_16": "raybcgd.model.transformers:vit_b_16",
    },
)
LOSSES = Registry(
    "model.loss",
    {
        "cross_entropy": "raybcgd.model.losses:cross_entropy",
        "binary_cross_entropy": "raybcgd.model.losses:binary_cross_entropy",
        "sigmoid": "raybcgd.model.losses:sigmoid",
        "mse": "raybcgd.model.losses:mse",
        "l1": "raybcgd.model.losses:l1",
    },
)

METRICS = Registry(
    "evaluation.metrics",
    {"top5": "raybcgd.model.metrics:top5", "absolute_error": "raybcgd.model.metrics:absolute_error"},
)


class ModelConfig(Section):
    """`[model]`: the model and its loss."""

    name: str | Callable[..., Any] = "mlp"
    """The model, or "package.module:callable": a function or class that returns a torch.nn.Module. It is called with
    (input_shape, classes, **options), where classes is 1 for regression. If it accepts neither shape nor classes, it is
    called with the options only."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the model, such as `hidden = [64, 64]` for mlp."""
    dtype: Literal["float32", "float64"] = "float32"
    """Data type of parameters, gradients and inputs."""
    loss: str | Callable[..., Any] = "cross_entropy"
    """The loss, or "package.module:callable" that takes (outputs, targets, reduction="mean" | "none"), as the losses of
    torch.nn.functional do. binary_cross_entropy and sigmoid need two classes and one logit; mse and l1 are for
    regression."""

    @model_validator(mode="before")
    @classmethod
    def _default_loss(cls, values: Any) -> Any:
        # "Sigmoid ERM" is a linear model with the sigmoid loss.
        if isinstance(values, dict) and values.get("name") == "sigmoid_erm":
            return {"loss": "sigmoid", **values}
        return values

    @field_serializer("name")
    def _model_by_name(self, name: Any) -> str:
        return MODELS.name_of(name)

    @field_serializer("loss")
    def _loss_by_name(self, loss: Any) -> str:
        return LOSSES.name_of(loss)


class BlocksConfig(Section):
    """`[blocks]`: the division of the parameters into blocks."""

    division: str = "layers"
    """layers: whole layers, as listed in `groups`, or about the same number per block. balanced: whole layers, about
    the same number of parameters per block. equal: slices of equal size, which may split layers. Or a paper's division:
    lenet5, lenet5-paper, vgg11, vgg19, resnet8, resnet18, vit_b_16, vit_b_16-lora (see `raybcgd blocks`)."""
    count: Annotated[int, Field(ge=1)] | None = None
    """N, the number of blocks. Ignored if `groups` or a paper's division defines the blocks. Default: 5, or fewer if
    there are fewer layers to divide or fewer clients."""
    groups: tuple[tuple[str, ...], ...] | None = None
    """With division = "layers": the layers of each block, by name or prefix."""
    shared: Literal["last", "none", "all"] | tuple[str, ...] | Annotated[int, Field(ge=0)] | None = None
    """The shared block, which every client uploads. last: the last layer with parameters. none: no shared block. all:
    the whole model. Or a list of layers. Or, with division = "equal", a number of coordinates at the end. Default:
    last, or none if the model has only one layer."""
    redivide_every: Annotated[int, Field(ge=1)] | None = None
    """Divide the parameters again every n rounds. Only the edges between blocks move; momentum and control variates
    stay with their coordinates. None: never."""
    redivide: Literal["drift", "movement", "size", "shift"] = "drift"
    """What the new blocks balance. drift: the clients' recent squared displacements. movement: the global model's
    recent squared movement. size: the number of coordinates. shift: nothing; equal slices move by a random offset.
    Layers stay whole, unless `division` makes slices of equal size."""
    redivide_times: Annotated[int, Field(ge=1)] | None = None
    """Stop after this many new divisions. None: no limit."""
