"""Pretrained weights from a file or from torchvision, read without unpickling code."""

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from raybcgd.errors import ConfigError, first_line
from raybcgd.torchvision_ops import import_torchvision


def read_weights(source: str) -> dict[str, Tensor]:
    """Read named tensors from a safetensors or PyTorch file, or download torchvision's ViT-Base/16 for "hub"."""
    setting = f'model.options.weights = "{source}"'
    state: Any
    try:
        path = Path(source).expanduser()
        if source == "hub":
            weights = import_torchvision("models").ViT_B_16_Weights.IMAGENET1K_V1
            state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
        elif path.suffix == ".safetensors":
            state = safetensors.torch.load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    # The readers raise many kinds of errors for a missing, truncated or unsupported file.
    except Exception as error:
        fix = 'use a .safetensors file, a PyTorch file of named tensors, or "hub"'
        raise ConfigError(f"{setting} cannot be read ({first_line(error)}); {fix}") from error
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise ConfigError(f"{setting} must contain only named tensors; save model.state_dict() to it")
    return state


def load_pretrained(model: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Load weights into a vision transformer. A head of another shape is skipped; any other mismatch is an error."""
    own = model.state_dict()
    fitting = {name: tensor for name, tensor in state.items() if name in own and tensor.shape == own[name].shape}
    for name in (*own, *state):
        if name not in fitting and not name.startswith("heads."):
            problem = f"has {name}, which the model lacks or has in another shape" if name in state else f"lacks {name}"
            fix = "use weights of the same architecture, named as in torchvision"
            raise ConfigError(f'model.options.weights = "{source}" {problem}; {fix}')
    model.load_state_dict(fitting, strict=False)
