"""Vision transformers (Dosovitskiy et al., ICLR 2021) from torchvision, for images of any size."""

from collections.abc import Callable
from typing import Any

from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from raybcgd.errors import ConfigError
from raybcgd.model.convolutional import SMALLEST_SIDE, image_shape
from raybcgd.model.lora import Target, add_lora
from raybcgd.model.pretrained import load_pretrained, read_weights
from raybcgd.torchvision_ops import import_torchvision


def vit_b_16(
    input_shape: tuple[int, ...],
    classes: int,
    weights: str = "",
    lora_rank: NonNegativeInt = 0,
    lora_alpha: float = 16.0,
    lora_targets: tuple[Target, ...] = ("attention",),
) -> nn.Module:
    """ViT-Base/16 on images resized to 256x256 and cropped to the central 224x224, as in the FedBCGD paper.

    `weights` is a safetensors or PyTorch file of named tensors, or "hub" for torchvision's ImageNet weights. The head
    is initialised from scratch if the number of classes differs. `lora_rank` > 0 trains only the head and the adapters.
    """
    _check_channels("vit_b_16", input_shape)
    # Read the weights first, so that a wrong path fails before the model is built.
    state = read_weights(weights) if weights else {}
    model = import_torchvision("models").vit_b_16(num_classes=classes)
    if weights:
        load_pretrained(model, state, weights)
    return _finish(model, _resize_and_crop, lora_rank, lora_alpha, lora_targets)


def vit_tiny(
    input_shape: tuple[int, ...],
    classes: int,
    patch: NonNegativeInt = 0,
    depth: PositiveInt = 12,
    width: PositiveInt = 192,
    heads: PositiveInt = 3,
    lora_rank: NonNegativeInt = 0,
    lora_alpha: float = 16.0,
    lora_targets: tuple[Target, ...] = ("attention",),
) -> nn.Module:
    """ViT-Tiny (Touvron et al., ICML 2021) at the images' size. `patch` = 0 means 4, or 2 for images below 16x16."""
    _check_channels("vit_tiny", input_shape)
    if width % heads:
        raise ConfigError(f"model.options.heads = {heads} does not divide model.options.width = {width}; change one")
    side = max(input_shape[1:])
    patch = patch or (4 if side >= 16 else 2)
    side = -(-side // patch) * patch
    model = import_torchvision("models").VisionTransformer(
        side, patch, num_layers=depth, num_heads=heads, hidden_dim=width, mlp_dim=4 * width, num_classes=classes
    )
    return _finish(model, _resize, lora_rank, lora_alpha, lora_targets)


def _check_channels(name: str, input_shape: tuple[int, ...]) -> None:
    channels, _, _ = image_shape(name, input_shape, smallest=SMALLEST_SIDE)
    if channels not in (1, 3):
        raise ConfigError(f'model.name = "{name}" needs 1 or 3 channels, not {channels}; choose another data.source')


_Prepare = Callable[[Any, tuple[Tensor]], tuple[Tensor]]


def _finish(model: nn.Module, prepare: _Prepare, rank: int, alpha: float, targets: tuple[Target, ...]) -> nn.Module:
    if rank:
        add_lora(model, rank, alpha, targets)
    # A hook keeps torchvision's parameter names; a wrapper module would change them.
    model.register_forward_pre_hook(prepare)
    return model


def _resize_and_crop(model: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Resize images to 8/7 of the model's size, crop the centre and expand it to three channels, on their device."""
    side = model.image_size
    x, edge = _scaled(inputs[0], side * 8 // 7), side // 14
    return (x[..., edge : edge + side, edge : edge + side].expand(-1, 3, -1, -1),)


def _resize(model: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Resize images and expand them to three channels, on their device."""
    return (_scaled(inputs[0], model.image_size).expand(-1, 3, -1, -1),)


def _scaled(x: Tensor, side: int) -> Tensor:
    if x.shape[-2:] == (side, side):
        return x
    return nn.functional.interpolate(x, (side, side), mode="bilinear", antialias=True)
