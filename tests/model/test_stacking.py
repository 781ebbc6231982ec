"""Models that cannot train in a stack of clients: they are found before the run, and train one client at a time."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raybcgd import Config, ConfigError, run
from raybcgd.problem import checks, prepare
from tests.conftest import small


class Net(nn.Module):
    """Two layers. Subclasses change what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.between(self.one(x.flatten(1)).relu()))  # type: ignore[no-any-return]

    def between(self, h: Tensor) -> Tensor:
        return h


class Dropout(Net):
    def between(self, h: Tensor) -> Tensor:
        return nn.functional.dropout(h, 0.2, self.training)


class Item(Net):
    def between(self, h: Tensor) -> Tensor:
        return h / max(1.0, h.abs().max().item())


class Noise(Net):
    def between(self, h: Tensor) -> Tensor:
        return h + 0.01 * torch.randn_like(h)


class InPlace(Net):
    def between(self, h: Tensor) -> Tensor:
        rest = torch.zeros(h.shape[-1])
        rest[:4] = h[0, :4]
        return h + rest


class Mixing(Net):
    def between(self, h: Tensor) -> Tensor:
        return h - h.mean(0)


SETTINGS: dict[str, Any] = {"rounds": 1, "blocks": {"count": 1}, "algorithm": {"name": "fedavg", "lr": 0.05}}


@pytest.mark.parametrize("kind", [Dropout, Item, Noise, InPlace, Mixing])
def test_a_model_that_does_not_fit_a_stack_trains_one_client_at_a_time(kind: type[Net], out: Path) -> None:
    torch.manual_seed(0)
    module = kind()
    result = run(small(**SETTINGS), module=module, out=out)
    assert result.summary["stack"] == 0
    assert not result.records[0].dropped
    refused = r"local\.stack = 4 cannot be used with this model: its .* (there|outside a stack)"
    with pytest.raises(ConfigError, match=refused):
        prepare(small(**SETTINGS, local={"stack": 4}), module)


def test_the_trial_leaves_the_random_numbers_alone() -> None:
    module, state = Dropout(), torch.get_rng_state()
    prepare(small(**SETTINGS), module)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_reason_is_logged_and_a_model_that_fits_trains_in_stacks(caplog: pytest.LogCaptureFixture) -> None:
    prepare(small(**SETTINGS), Net())  # notes, once, that the module replaces the model of the config
    caplog.clear()
    assert prepare(small(**SETTINGS), Net())[0].stack == 64
    assert not caplog.records

    class Odd(Net):
        def between(self, h: Tensor) -> Tensor:
            return h * float(h.detach().numpy().sum() > 17)

    for _ in range(2):
        assert prepare(small(**SETTINGS), Odd())[0].stack == 0
    (note,) = caplog.messages
    assert note.startswith("note: clients train one at a time, because the model cannot train in a stack: its forward")


def test_batches_are_padded_to_the_largest_client(out: Path) -> None:
    class Big(Net):
        largest = 0

        def between(self, h: Tensor) -> Tensor:
            Big.largest = max(Big.largest, len(h))
            return h

    config = small(**SETTINGS, local={"batch_size": 100_000, "stack": 4})
    problem, _ = prepare(config, Big())
    run(config, module=Big(), out=out)
    assert 0 < Big.largest <= max(problem.largest_client, config.evaluation.batch_size)


@pytest.mark.parametrize("name", checks._KNOWN_TO_STACK)
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_models_without_a_trial_pass_it(name: str, task: str) -> None:
    """An explicit stack is always tried out."""
    losses = ["mse", "l1"] if task == "regression" else ["binary_cross_entropy", "sigmoid"]
    losses += ["cross_entropy"] if task == "binary" and name != "sigmoid_erm" else []
    for loss in losses:
        model, given = {"name": name, "loss": loss}, {"task": task, "partition": {"clients": 4}}
        config = Config(engine="local", algorithm={"name": "fedavg"}, data=given, model=model, local={"stack": 4})
        assert prepare(config)[0].no_stack is None


def test_the_quickstart_is_prepared_without_torchs_compiler() -> None:
    code = (
        "import sys; from raybcgd.config import load_config; from raybcgd.problem import prepare; "
        "problem, _ = prepare(load_config('jobs/configs/quickstart.toml')); "
        "print(problem.stack, 'torch._dynamo' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["64", "False"]
