"""Local training in bfloat16: products are rounded, everything that is kept is in float32."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raybcgd.errors import ConfigError
from raybcgd.experiment import run
from raybcgd.model.dense import mlp
from tests.conftest import small

pytestmark = pytest.mark.usefixtures("recording")

SEEN: set[tuple[bool, torch.dtype]] = set()


class Watched(nn.Module):
    """The small network of the other tests. Records in which type it computes, in training and in evaluation."""

    def __init__(self, input_shape: tuple[int, ...], classes: int, **options: Any) -> None:
        super().__init__()
        self.net = mlp(input_shape, classes, **options)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.net(x)
        SEEN.add((self.training, outputs.dtype))
        return outputs


@pytest.mark.parametrize("stack", [0, 4])
def test_bf16_trains_in_bfloat16_and_keeps_float32(tmp_path: Path, stack: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raybcgd.problem.checks.fails_in_stack", lambda *_: None)  # the trial of a stack is in float32
    model = {"name": "tests.client.test_precision:Watched"}
    runs = {}
    for precision in ("float32", "bf16"):
        SEEN.clear()
        local = {"stack": stack, "precision": precision}
        runs[precision] = run(small(rounds=8, local=local, model=model), out=tmp_path / precision)
        trained_in = torch.bfloat16 if precision == "bf16" else torch.float32
        assert {(True, trained_in), (False, torch.float32)} == SEEN
    exact, rounded = (runs[precision].model.state_dict() for precision in ("float32", "bf16"))
    assert all(tensor.dtype == torch.float32 for tensor in rounded.values())
    assert any(not torch.equal(exact[name], rounded[name]) for name in exact)
    best = [runs[precision].summary["best_accuracy"] for precision in ("float32", "bf16")]
    assert abs(best[0] - best[1]) < 0.1


def test_bf16_does_not_depend_on_the_grouping_of_clients(tmp_path: Path) -> None:
    first, second = (
        run(small(local={"stack": stack, "precision": "bf16"}), out=tmp_path / str(stack)).summary for stack in (2, 6)
    )
    assert first["sha256"] == second["sha256"]


def test_bf16_with_a_float64_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'local\.precision = "bf16" needs model\.dtype = "float32"'):
        run(small(local={"precision": "bf16"}, model={"dtype": "float64"}), out=tmp_path / "run")
