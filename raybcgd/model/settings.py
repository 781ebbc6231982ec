"""`[model]` and `[blocks]`: what is trained, and how its parameters are divided."""

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
        "cross_entropy": "torch.nn.functional:cross_entropy",
        "binary_cross_entropy": "raybcgd.model.losses:binary_cross_entropy",
        "sigmoid": "raybcgd.model.losses:sigmoid",
    },
)


class ModelConfig(Section):
    """`[model]`: the model and its loss."""

    name: str | Callable[..., Any] = "mlp"
    """A built-in model (mlp, logistic, sigmoid_erm, lenet5, cnn, vgg11, vgg19, resnet8, resnet18, vit_tiny, vit_b_16)
    or "package.module:callable". A callable gets (input_shape, classes, **options), or only the options if it takes
    neither shape nor classes."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the model, for example `hidden = [64, 64]` for mlp."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of parameters, gradients and inputs."""
    loss: str | Callable[..., Any] = "cross_entropy"
    """cross_entropy; binary_cross_entropy or sigmoid for two classes and one logit; or "package.module:callable" with
    the signature of torch.nn.functional: (outputs, targets, reduction="mean" | "none")."""

    @model_validator(mode="before")
    @classmethod
    def _loss_of_the_model(cls, values: Any) -> Any:
        # The sigmoid loss is what makes a linear model "sigmoid ERM".
        if isinstance(values, dict) and values.get("name") == "sigmoid_erm":
            return {"loss": "sigmoid", **values}
        return values

    @field_serializer("name")
    def _name(self, name: Any) -> str:
        return MODELS.name_of(name)

    @field_serializer("loss")
    def _loss_name(self, loss: Any) -> str:
        return LOSSES.name_of(loss)


class BlocksConfig(Section):
    """`[blocks]`: the division of the parameters."""

    division: str = "layers"
    """layers: whole layers, as in `groups` or about the same number per block; balanced: whole layers, about the same
    number of parameters per block; equal: cuts of equal size; or a paper's division: lenet5, lenet5-paper, vgg11,
    vgg19, resnet8, resnet18, vit_b_16, vit_b_16-lora (see `raybcgd blocks`)."""
    count: Annotated[int, Field(ge=1)] = 5
    """N, the number of blocks. A paper's division and `groups` have their own."""
    groups: tuple[tuple[str, ...], ...] | None = None
    """Layer names, or prefixes of them, of each block in order, for division = "layers"."""
    shared: Literal["last", "none", "all"] | tuple[str, ...] | Annotated[int, Field(ge=0)] = "last"
    """The block that every client uploads: the last layer with parameters, none, everything, layer names, or the last n
    coordinates (with division = "equal")."""
    redivide_every: Annotated[int, Field(ge=1)] | None = None
    """Divide the parameters again every n rounds. Only the edges between blocks move, so momentum and control variates
    stay with their coordinates. None: never."""
    redivide: Literal["drift", "movement", "size", "shift"] = "drift"
    """What a new division balances: the clients' recent squared displacement, the global model's recent squared
    movement, or the number of coordinates. shift moves equal cuts by a random part of their size. Blocks consist of
    whole layers unless the first division used equal cuts."""
    redivide_times: Annotated[int, Field(ge=1)] | None = None
    """Stop after this many new divisions. None: no limit."""
