"""Models and losses: shapes, determinism, training, and one-line errors."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from raybcgd.errors import ConfigError
from raybcgd.model.blocks import divide
from raybcgd.model.losses import binary_cross_entropy
from raybcgd.model.settings import MODELS, BlocksConfig, ModelConfig
from raybcgd.model.zoo import build, loss_function

SMALL = sorted(set(MODELS) - {"vit_b_16", "sigmoid_erm"})


def user_model(input_shape: tuple[int, ...], classes: int, width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[1], width), nn.Linear(width, classes))


def ready_model() -> nn.Module:
    return nn.Linear(2, 2)


def wide_model(width: int) -> nn.Module:
    return nn.Linear(width, width)


def not_a_model() -> int:
    return 3


def half_squared(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    return nn.functional.mse_loss(outputs, targets, reduction=reduction) / 2


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "user_package", sys.modules[__name__])


def _model(name: str, input_shape: tuple[int, ...], classes: int = 10, **options: object) -> nn.Module:
    return build(ModelConfig(name=name, options=options), input_shape, classes, seed=0)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("input_shape", [(3, 32, 32), (1, 28, 28)])
def test_every_model_accepts_colour_and_grey_images(name: str, input_shape: tuple[int, ...]) -> None:
    options = {"depth": 2} if name == "vit_tiny" else {}
    with torch.no_grad():
        outputs = _model(name, input_shape, 7, **options)(torch.randn(2, *input_shape))
    assert outputs.shape == (2, 7)
    assert bool(outputs.isfinite().all())


@pytest.mark.parametrize(
    ("name", "options", "shared", "ratio"),
    [("vgg11-fedpvr", {}, ("classifier",), 2.11), ("resnet8", {"norm": "batch"}, "last", 2.02)],
)
def test_fedpvr_sends_as_much_as_published(name: str, options: dict[str, str], shared: Any, ratio: float) -> None:
    """Upload and download of FedPVR, relative to the model: the model and the control variates of the last layers."""
    layout = divide(_model(name, (3, 32, 32), **options), BlocksConfig(count=1, shared=shared))
    assert 2 * (1 + layout.shared.size / layout.size) == pytest.approx(ratio, abs=0.005)


def test_the_vgg_of_fedpvr_has_a_fifth_pool_and_dropout_that_repeats() -> None:
    model = _model("vgg11-fedpvr", (3, 32, 32))
    x = torch.randn(2, 3, 32, 32)
    features = model.features(x)
    assert torch.equal(model.pool(features), nn.functional.max_pool2d(features, 2))
    outputs = [(torch.manual_seed(seed), model(x))[1] for seed in (0, 0, 1)]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("name", ["mlp", "logistic", "resnet8", "resnet18", "vit_tiny"])
def test_some_models_accept_the_small_digits(name: str) -> None:
    assert _model(name, (1, 8, 8))(torch.randn(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "smallest"), [("lenet5", 16), ("cnn", 16), ("vgg11", 16), ("vgg19", 16), ("resnet18", 8), ("resnet8", 4)]
)
def test_images_below_the_minimum_size_are_refused(name: str, smallest: int) -> None:
    _model(name, (1, smallest, smallest))(torch.randn(2, 1, smallest, smallest))
    with pytest.raises(ConfigError, match=f"at least {smallest}x{smallest}"):
        _model(name, (1, smallest - 1, smallest))


@pytest.mark.parametrize("name", ["lenet5", "resnet18", "resnet8", "vit_tiny"])
def test_an_error_suggests_only_models_that_support_the_images(name: str) -> None:
    with pytest.raises(ConfigError, match=r"; set it to mlp$"):
        _model(name, (1, 3, 3))
    if name in ("lenet5", "resnet18"):
        with pytest.raises(ConfigError, match=r"; set it to mlp, resnet8 or vit_tiny$"):
            _model(name, (1, 4, 4))


def test_images_need_not_be_square() -> None:
    for name in ("lenet5", "cnn", "vgg11", "resnet8"):
        assert _model(name, (3, 20, 36))(torch.randn(2, 3, 20, 36)).shape == (2, 10)


@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet8", "vit_tiny"])
def test_initialisation_depends_only_on_the_seed(name: str) -> None:
    config = ModelConfig(name=name)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = build(config, (1, 28, 28), 10, seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again = build(config, (1, 28, 28), 10, seed=5).state_dict()
    other = build(config, (1, 28, 28), 10, seed=6).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
    double = build(ModelConfig(name=name, dtype="float64"), (1, 28, 28), 10, seed=5).state_dict()
    assert all(torch.equal(first[key], double[key].to(first[key].dtype)) for key in first)


def test_the_default_model_trains_with_plain_sgd() -> None:
    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    y = torch.tensor(labels)
    model = build(ModelConfig(), (1, 8, 8), 10, seed=0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = loss_function(ModelConfig())
    for _ in range(10):
        for batch in range(0, 1400, 50):
            optimiser.zero_grad()
            loss(model(x[batch : batch + 50]), y[batch : batch + 50]).backward()
            optimiser.step()
    assert (model(x[1400:]).argmax(1) == y[1400:]).float().mean() > 0.85


def test_options_change_the_model() -> None:
    assert [p.shape[0] for p in _model("mlp", (1, 8, 8), hidden=[5, 6]).parameters() if p.dim() == 2] == [5, 6, 10]
    norms = {type(m) for m in _model("resnet18", (3, 32, 32), norm="batch").modules()}
    assert nn.BatchNorm2d in norms
    assert nn.GroupNorm not in norms
    norms = {type(m) for m in _model("resnet18", (3, 32, 32)).modules()}
    assert nn.GroupNorm in norms
    assert nn.BatchNorm2d not in norms


def test_losses_on_one_logit() -> None:
    config = ModelConfig(name="logistic", loss="binary_cross_entropy")
    model = build(config, (4,), 2, seed=0)
    z, y = torch.tensor([[0.3], [-1.2], [2.0]]), torch.tensor([0, 1, 1])
    assert model(torch.randn(3, 4)).shape == (3, 1)
    both = torch.cat([torch.zeros_like(z), z], dim=1)
    expected = nn.functional.cross_entropy(both, y, reduction="none")
    torch.testing.assert_close(loss_function(config)(z, y, reduction="none"), expected)
    torch.testing.assert_close(loss_function(config)(z, y, reduction="mean"), expected.mean())
    sigmoid = loss_function(ModelConfig(name="sigmoid_erm"))
    b = 2 * y - 1
    torch.testing.assert_close(sigmoid(z, y, reduction="none"), 1 / (1 + torch.exp(b * z[:, 0])))
    torch.testing.assert_close(sigmoid(z, y), (1 / (1 + torch.exp(b * z[:, 0]))).mean())
    assert build(ModelConfig(name="sigmoid_erm"), (4,), 2, seed=0)(torch.randn(3, 4)).shape == (3, 1)


def test_custom_models_and_losses() -> None:
    assert _model("user_package:user_model", (3, 4), 2, width=9)[1].out_features == 9
    assert isinstance(_model("user_package:ready_model", (3, 4)), nn.Linear)
    assert _model("user_package:wide_model", (3, 4), width=6).in_features == 6
    assert isinstance(_model("torch.nn:Linear", (3, 4), in_features=1, out_features=2), nn.Linear)
    assert loss_function(ModelConfig(loss="user_package:half_squared")) is half_squared
    assert build(ModelConfig(name=user_model, options={"width": 4}), (3, 4), 2, 0)[1].out_features == 4
    assert loss_function(ModelConfig(loss=half_squared)) is half_squared
    logistic = build(ModelConfig(name="logistic", loss=binary_cross_entropy), (3, 4), 2, 0)
    assert logistic(torch.zeros(1, 3, 4)).shape == (1, 1), "a built-in loss passed as an object"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "nope"}, 'model.name = "nope" is unknown'),
        ({"options": {"depth": 3}}, "model.options has depth, but mlp accepts hidden"),
        ({"options": {"hidden": "wide"}}, "model.options.hidden"),
        ({"options": {"hidden": [0]}}, "model.options.hidden.0"),
        ({"name": "lenet5"}, "at least 16x16"),
        ({"name": "resnet8", "options": {"norm": "layer"}}, "model.options.norm"),
        ({"name": "resnet8", "options": {"groups": 3}}, "model.options.groups = 3"),
        ({"name": "vit_tiny", "options": {"heads": 5}}, "model.options.heads = 5"),
        ({"name": "sigmoid_erm"}, "needs two classes, but the data has 10"),
        ({"name": "sigmoid_erm", "loss": "cross_entropy"}, "set model.loss to"),
        ({"name": "no_such_package:model"}, "cannot be imported (ModuleNotFoundError"),
        ({"name": "user_package:"}, 'model.name = "user_package:" is unknown; use one of mlp,'),
        ({"name": "user_package:nothing"}, "cannot be imported (AttributeError"),
        ({"name": "user_package:SMALL"}, "is not callable"),
        ({"name": nn.Linear(2, 2)}, "pass it as run(module=…)"),
        ({"name": "user_package:not_a_model"}, "returned int; return a torch.nn.Module"),
        ({"name": "user_package:wide_model"}, "missing a required argument"),
        (
            {"name": "user_package:ready_model", "options": {"a": 1}},
            "accepts no options; remove them, or set model.options = {} if",
        ),
        ({"name": "vit_b_16", "options": {"weights": "/no/such/file"}}, "model.options.weights"),
    ],
)
def test_an_invalid_model_gives_a_one_line_error(config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(ModelConfig(**config), (1, 8, 8), 10, seed=0)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_images_with_their_channels_last_are_recognised() -> None:
    with pytest.raises(ConfigError) as error:
        build(ModelConfig(name="resnet8"), (12, 12, 3), 10, seed=0)
    assert str(error.value) == (
        'model.name = "resnet8" needs samples of shape (channels, height, width), but (12, 12, 3) looks like channels '
        "last; transpose the images to (n, channels, height, width)"
    )
    for shape in ((3, 12, 3), (12, 3, 3), (12, 12, 2)):
        with pytest.raises(ConfigError, match="needs images of at least 4x4"):
            build(ModelConfig(name="resnet8"), shape, 10, seed=0)


def test_an_unknown_loss_or_an_input_that_is_not_an_image_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'model\.loss = "nope"'):
        loss_function(ModelConfig(loss="nope"))
    with pytest.raises(ConfigError, match="needs images"):
        _model("cnn", (784,))


def test_the_default_model_and_data_import_no_slow_library() -> None:
    code = (
        "import sys, raybcgd.model.zoo as zoo, raybcgd.data.sources as sources; "
        "zoo.build(zoo.ModelConfig(), (1, 8, 8), 10, 0); sources.load(sources.DataConfig()); "
        "print({'torchvision', 'sklearn', 'pandas', 'scipy'} & sys.modules.keys())"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", sorted({*SMALL} - {"vgg19", "resnet18", "vgg11-fedpvr"}))
def test_stacked_gradients_equal_single_gradients(name: str) -> None:
    options = {"depth": 1, "width": 12, "lora_rank": 1} if name == "vit_tiny" else {}
    model = build(ModelConfig(name=name, options=options, dtype="float64"), (1, 18, 18), 3, seed=0)
    names = [key for key, parameter in model.named_parameters() if parameter.requires_grad]
    stack = {key: torch.stack([model.get_parameter(key).detach() * (1 + k / 10) for k in range(2)]) for key in names}
    x, y = torch.randn(2, 4, 1, 18, 18, dtype=torch.float64), torch.randint(3, (2, 4))

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss_function(ModelConfig())(torch.func.functional_call(model, parameters, (x,)), y)

    together = torch.func.vmap(torch.func.grad(loss))(stack, x, y)
    for k in range(2):
        alone = torch.func.grad(loss)({key: tensor[k] for key, tensor in stack.items()}, x[k], y[k])
        for key in names:
            torch.testing.assert_close(together[key][k], alone[key])
