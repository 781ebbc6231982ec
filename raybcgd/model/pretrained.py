"""Weights from a file or from torchvision's hub, read without unpickling code."""

from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from raybcgd.errors import ConfigError
from raybcgd.torchvision_ops import import_torchvision


def read_weights(source: str) -> dict[str, Tensor]:
    """The named tensors of a file (safetensors, or PyTorch's with tensors only), or of ViT-Base/16 on the hub."""
    try:
        state = _from_hub() if source == "hub" else _from_file(Path(source).expanduser())
    # The readers raise errors of many kinds for a file that is missing, cut short or of another format.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f'model.options.weights = "{source}" cannot be read ({reason}); give a .safetensors file or a PyTorch file '
            'of named tensors, or "hub" where there is a network'
        ) from error
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise ConfigError(
            f'model.options.weights = "{source}" does not hold named tensors alone; save model.state_dict() to it'
        )
    return state


def load_pretrained(model: nn.Module, state: dict[str, Tensor], source: str, head: str = "heads.") -> None:
    """Load weights into a model; a head for other classes is left out, anything else that does not fit is refused."""
    own = model.state_dict()
    state = {
        name: tensor
        for name, tensor in state.items()
        if not (name.startswith(head) and (name not in own or own[name].shape != tensor.shape))
    }
    missing = [name for name in own if name not in state and not name.startswith(head)]
    strange = [name for name, tensor in state.items() if name not in own or own[name].shape != tensor.shape]
    if missing or strange:
        example = f"lacks {missing[0]}" if missing else f"has a {strange[0]} that the model has not in that shape"
        raise ConfigError(
            f'model.options.weights = "{source}" is of another model: it {example}; '
            "give weights with torchvision's names"
        )
    model.load_state_dict(state, strict=False)


def _from_file(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path)
    state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _from_hub() -> dict[str, Tensor]:
    weights = import_torchvision("models").ViT_B_16_Weights.IMAGENET1K_V1
    state: dict[str, Tensor] = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    return state
