"""Pretrained weights from a file or from torchvision, read without unpickling code."""

from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from raybcgd.errors import ConfigError, first_line
from raybcgd.torchvision_ops import import_torchvision


def read_weights(source: str) -> dict[str, Tensor]:
    """Read named tensors from a safetensors or PyTorch file, or download torchvision's ViT-Base/16 for "hub"."""
    try:
        state = _from_hub() if source == "hub" else _from_file(Path(source).expanduser())
    # The readers raise many kinds of errors for a missing, truncated or foreign file.
    except Exception as error:
        raise ConfigError(
            f'model.options.weights = "{source}" cannot be read ({first_line(error)}); use a .safetensors file, '
            'a PyTorch file of named tensors, or "hub" to download them'
        ) from error
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise ConfigError(
            f'model.options.weights = "{source}" must contain only named tensors; save model.state_dict() to it'
        )
    return state


def load_pretrained(model: nn.Module, state: dict[str, Tensor], source: str, head: str = "heads.") -> None:
    """Load weights into a model. Skip a head of another shape; any other mismatch is an error."""
    own = model.state_dict()
    state = {
        name: tensor
        for name, tensor in state.items()
        if not (name.startswith(head) and (name not in own or own[name].shape != tensor.shape))
    }
    missing = [name for name in own if name not in state and not name.startswith(head)]
    unknown = [name for name, tensor in state.items() if name not in own or own[name].shape != tensor.shape]
    if missing or unknown:
        example = f"lacks {missing[0]}" if missing else f"has {unknown[0]} with an unknown name or shape"
        raise ConfigError(
            f'model.options.weights = "{source}" does not fit the model: the file {example}; '
            "use weights of the same architecture, named as in torchvision"
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
