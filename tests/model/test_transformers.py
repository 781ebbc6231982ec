"""Vision transformers: adapters, pretrained weights, and images of other sizes."""

import copy
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from raybcgd.errors import ConfigError
from raybcgd.model.blocks import divide
from raybcgd.model.division_table import upload_saving
from raybcgd.model.flat import FlatModel
from raybcgd.model.layers import layers_of
from raybcgd.model.pretrained import load_pretrained, read_weights
from raybcgd.model.settings import BlocksConfig, ModelConfig
from raybcgd.model.zoo import build
from raybcgd.torchvision_ops import import_torchvision


def _tiny(input_shape: tuple[int, ...] = (1, 8, 8), classes: int = 10, **options: object) -> nn.Module:
    config = ModelConfig(name="vit_tiny", options={"depth": 2, "width": 12, **options})
    return build(config, input_shape, classes, seed=0)


def test_greyscale_and_non_square_images_are_resized() -> None:
    assert _tiny((1, 9, 14))(torch.randn(2, 1, 9, 14)).shape == (2, 10)
    assert _tiny((3, 30, 17), patch=7)(torch.randn(2, 3, 30, 17)).shape == (2, 10)
    with pytest.raises(ConfigError, match="1 or 3 channels"):
        _tiny((2, 8, 8))


def test_vit_base_sees_the_central_crop_of_the_resized_image() -> None:
    """The paper resizes to 256 and crops to 224, as torchvision's transforms for these weights do."""
    transforms = import_torchvision("transforms.functional")
    images = torch.randn(2, 3, 64, 64)
    expected = transforms.center_crop(transforms.resize(images, [256, 256], antialias=True), [224, 224])
    with torch.device("meta"):
        model = build(ModelConfig(name="vit_b_16"), (3, 64, 64), 10, seed=0)
    (hook,) = model._forward_pre_hooks.values()
    torch.testing.assert_close(hook(model, (images,))[0], expected)
    assert hook(model, (images[:, :1],))[0].shape == (2, 3, 224, 224)


def test_only_adapters_and_head_are_trained() -> None:
    plain, model = _tiny(), _tiny(lora_rank=2)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert {name.split(".")[0] for name in trained} == {"encoder", "heads"}
    assert sum(p.numel() for name, p in trained.items() if "parametrizations" in name) == 2 * (2 * 12 + 36 * 2)
    assert [layer.name.split(".")[-1] for layer in layers_of(model)] == ["0", "0", "head"]
    both = _tiny(lora_rank=2, lora_targets=["attention", "mlp"])
    assert len(layers_of(both)) == 2 * 3 + 1
    x = torch.randn(3, 1, 8, 8)
    # Adapters are initially the identity, so the outputs equal those of the frozen model.
    reference = {name: tensor for name, tensor in model.state_dict().items() if "parametrizations" not in name}
    plain.load_state_dict(reference, strict=False)
    for k in range(2):
        weight = model.encoder.layers[k].self_attention.parametrizations.in_proj_weight.original
        plain.encoder.layers[k].self_attention.in_proj_weight.data.copy_(weight)
    torch.testing.assert_close(model(x), plain(x))


def test_a_step_changes_adapters_and_no_frozen_parameter() -> None:
    model = _tiny(lora_rank=2)
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    flat = FlatModel(model, divide(model, BlocksConfig(count=2)), torch.float32, torch.device("cpu"))
    nn.init.normal_(model.heads.head.weight)
    for _ in range(2):
        flat.gradient.zero_()
        nn.functional.cross_entropy(model(torch.randn(4, 1, 8, 8)), torch.arange(4)).backward()
        assert all(bool(flat.gradient[block.slice].any()) for block in flat.layout.all_blocks)
        flat.vector.sub_(0.1 * flat.gradient)
    after = dict(model.named_parameters())
    assert all(torch.equal(after[name], frozen[name]) for name in frozen)
    saving = upload_saving(model, flat.layout, "float32")
    assert saving.frozen == sum(p.numel() for p in frozen.values())
    assert saving.whole_model_bytes > 10 * saving.upload_bytes


def test_adapters_can_all_be_shared() -> None:
    layout = divide(_tiny(lora_rank=2), BlocksConfig(shared="all", count=3))
    assert layout.shared.size == layout.size
    assert len(layout.blocks) == 3


def test_deep_copies_and_functional_calls_use_the_adapters() -> None:
    # float64, because the attention kernels round differently.
    torch.manual_seed(0)
    model = _tiny(lora_rank=2).double()
    nn.init.normal_(model.heads.head.weight)
    x = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(copy.deepcopy(model)(x), model(x))
    flat = FlatModel(model, divide(model, BlocksConfig(count=2)), torch.float64, torch.device("cpu"))
    before, other = model(x), torch.randn_like(flat.vector)
    functional = torch.func.functional_call(model, flat.named(other), (x,))
    flat.vector.copy_(other)
    torch.testing.assert_close(functional, model(x))
    assert not torch.allclose(functional, before)


def _shifted(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor + 1 for name, tensor in state.items()}


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_weights_are_read_from_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"weights.{suffix}"
    state = _shifted(_tiny(classes=1000).state_dict())
    if suffix == "safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    model = _tiny()
    head = model.heads.head.weight.clone()
    load_pretrained(model, read_weights(str(path)), str(path))
    after = model.state_dict()
    assert all(torch.equal(after[name], state[name]) for name in after if not name.startswith("heads."))
    assert torch.equal(after["heads.head.weight"], head)
    same_classes = _shifted(_tiny().state_dict())
    load_pretrained(model, same_classes, "memory")
    assert torch.equal(model.heads.head.weight, same_classes["heads.head.weight"])


def test_weights_that_do_not_fit_are_rejected(tmp_path: Path) -> None:
    state = _tiny().state_dict()
    with pytest.raises(ConfigError, match="lacks class_token"):
        load_pretrained(_tiny(), {name: t for name, t in state.items() if name != "class_token"}, "memory")
    with pytest.raises(ConfigError, match="class_token"):
        load_pretrained(_tiny(), {**state, "class_token": torch.zeros(3)}, "memory")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"12345678")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_weights(str(broken))
    pickled = tmp_path / "code.pth"
    torch.save({"a": Path}, pickled)
    with pytest.raises(ConfigError, match=r"model\.options\.weights"):
        read_weights(str(pickled))
    torch.save([1, 2], pickled)
    with pytest.raises(ConfigError, match="named tensors"):
        read_weights(str(pickled))


@pytest.mark.slow
def test_vit_base_with_adapters_has_six_blocks() -> None:
    config = ModelConfig(name="vit_b_16", options={"lora_rank": 8})
    model = build(config, (3, 64, 64), 200, seed=0)
    layout = divide(model, BlocksConfig(division="vit_b_16-lora"))
    assert [block.size for block in layout.blocks] == [2 * 8 * (768 + 3 * 768)] * 6
    assert layout.shared.size == 768 * 200 + 200
    with pytest.raises(ConfigError, match="without lora_rank"):
        divide(model, BlocksConfig(division="vit_b_16"))
    assert model(torch.randn(1, 3, 64, 64)).shape == (1, 200)
