"""Named block divisions from the papers."""

from collections.abc import Iterable
from dataclasses import dataclass

from raybcgd.errors import ConfigError
from raybcgd.model.layers import Layer, covers

Names = tuple[str, ...]


@dataclass(frozen=True)
class Division:
    """Division of a model into blocks: either `groups` (layer names or prefixes) or `cuts` of equal size."""

    model: str
    """The built-in model that the division is for, and its options. Shown in the error message."""
    shared: Names
    groups: tuple[Names, ...] = ()
    cuts: int = 0

    @property
    def count(self) -> int:
        """N, the number of blocks."""
        return self.cuts or len(self.groups)

    @property
    def names(self) -> Names:
        """All layer names and prefixes in the division."""
        return tuple(name for group in (*self.groups, self.shared) for name in group)


def _pairs(prefix: str, first: int, last: int) -> tuple[Names, ...]:
    """Return groups of two consecutive layers."""
    return tuple((f"{prefix}{number}", f"{prefix}{number + 1}") for number in range(first, last, 2))


_CONV, _HIDDEN = _pairs("features.conv", 1, 16), ("classifier.fc1", "classifier.fc2")
_LENET5: tuple[Names, ...] = (("conv1",), ("conv2",), ("fc1",), ("fc2",))
_RESNET8: tuple[Names, ...] = (("conv1", "layer1"), ("layer2",), ("layer3",))

DIVISIONS: dict[str, Division] = {
    "lenet5": Division("lenet5", ("fc3",), _LENET5),
    # The authors use N = 5: the fifth group of clients has an empty block and uploads only the shared block.
    "lenet5-paper": Division("lenet5", ("fc3",), (*_LENET5, ())),
    "vgg11": Division("vgg11", ("classifier.fc3",), (*_CONV[:4], _HIDDEN)),
    "vgg19": Division("vgg19", ("classifier.fc3",), (sum(_CONV[:4], ()), *_CONV[4:7], _CONV[7] + _HIDDEN)),
    "resnet8": Division("resnet8", ("fc",), _RESNET8),
    "resnet18": Division("resnet18", ("fc",), (*_RESNET8, ("layer4.0",), ("layer4.1",))),
    "vit_b_16": Division("vit_b_16 without lora_rank", ("encoder.ln", "heads"), cuts=6),
    "vit_b_16-lora": Division("vit_b_16 with lora_rank", ("heads",), _pairs("encoder.layers.encoder_layer_", 0, 11)),
}


def check_pairing(name: str, division: Division, layers: Iterable[Layer]) -> None:
    """Raise an error if the division's layers do not match the model's."""
    present = [layer.name for layer in layers]
    unknown = [layer for layer in present if not any(covers(prefix, layer) for prefix in division.names)]
    missing = [prefix for prefix in division.names if not any(covers(prefix, layer) for layer in present)]
    if missing:
        problem = f"has no trainable layer {missing[0]}"
    # Equal cuts span all layers before the shared ones, so only groups have to name every layer.
    elif unknown and not division.cuts:
        problem = f"has a layer {unknown[0]} that is not in the division"
    else:
        return
    raise ConfigError(
        f'blocks.division = "{name}" is for the model {division.model}, but this model {problem}; change model.name '
        "and model.options to match, or set blocks.division to layers, balanced or equal"
    )
