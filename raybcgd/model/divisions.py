"""Named block divisions from the papers."""

from collections.abc import Iterable
from dataclasses import dataclass

from raybcgd.errors import ConfigError
from raybcgd.model.layers import Layer, covers

Names = tuple[str, ...]


@dataclass(frozen=True)
class Division:
    """Division of a model into blocks: either `groups` of layer names or name prefixes, or `cuts` of equal size."""

    model: str
    """Built-in model that it was designed for. Any module with the same layer names works."""
    shared: Names
    groups: tuple[Names, ...] = ()
    cuts: int = 0
    options: str = ""
    """Required model options, for the error message."""

    @property
    def count(self) -> int:
        """N, the number of blocks."""
        return self.cuts or len(self.groups)

    @property
    def names(self) -> Names:
        """All layer names and prefixes in the division."""
        return tuple(name for group in (*self.groups, self.shared) for name in group)


def _convolutions(first: int, last: int) -> Names:
    return tuple(f"features.conv{number}" for number in range(first, last + 1))


_HIDDEN = ("classifier.fc1", "classifier.fc2")
_LENET5: tuple[Names, ...] = (("conv1",), ("conv2",), ("fc1",), ("fc2",))

DIVISIONS: dict[str, Division] = {
    "lenet5": Division("lenet5", groups=_LENET5, shared=("fc3",)),
    # The authors use N = 5: the fifth group of clients has an empty block and uploads only the shared block.
    "lenet5-paper": Division("lenet5", groups=(*_LENET5, ()), shared=("fc3",)),
    "vgg11": Division(
        "vgg11",
        groups=(_convolutions(1, 2), _convolutions(3, 4), _convolutions(5, 6), _convolutions(7, 8), _HIDDEN),
        shared=("classifier.fc3",),
    ),
    "vgg19": Division(
        "vgg19",
        groups=(
            _convolutions(1, 8),
            _convolutions(9, 10),
            _convolutions(11, 12),
            _convolutions(13, 14),
            (*_convolutions(15, 16), *_HIDDEN),
        ),
        shared=("classifier.fc3",),
    ),
    "resnet8": Division("resnet8", groups=(("conv1", "layer1"), ("layer2",), ("layer3",)), shared=("fc",)),
    "resnet18": Division(
        "resnet18",
        groups=(("conv1", "layer1"), ("layer2",), ("layer3",), ("layer4.0",), ("layer4.1",)),
        shared=("fc",),
    ),
    "vit_b_16": Division("vit_b_16", cuts=6, shared=("encoder.ln", "heads"), options="without lora_rank"),
    "vit_b_16-lora": Division(
        "vit_b_16",
        groups=tuple(tuple(f"encoder.layers.encoder_layer_{2 * k + half}" for half in (0, 1)) for k in range(6)),
        shared=("heads",),
        options="with lora_rank",
    ),
}


def check_pairing(name: str, division: Division, layers: Iterable[Layer]) -> None:
    """Raise an error if the layers of the division are not those of the model."""
    present = [layer.name for layer in layers]
    # Equal cuts span all layers before the shared ones, so only groups have to name every layer.
    unknown = [layer for layer in present if not any(covers(prefix, layer) for prefix in division.names)]
    missing = [prefix for prefix in division.names if not any(covers(prefix, layer) for layer in present)]
    problem = ""
    if missing:
        problem = f"has no trainable layer {missing[0]}"
    elif unknown and not division.cuts:
        problem = f"has a layer {unknown[0]} that is not in the division"
    if problem:
        wanted = f"{division.model} {division.options}".strip()
        raise ConfigError(
            f'blocks.division = "{name}" is for the model {wanted}, but this model {problem}; change model.name and '
            "model.options to match, or set blocks.division to layers, balanced or equal"
        )
