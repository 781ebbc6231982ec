"""What a run promises about its bits on an accelerator, and what it reports if it cannot keep the promise."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raybcgd.client.device import CPU, deterministic, limit_share
from raybcgd.engine.local import LocalPool
from raybcgd.errors import ConfigError, RunError
from raybcgd.experiment import run
from raybcgd.model.dense import mlp
from raybcgd.problem import prepare
from tests.device.conftest import on, outcome

pytestmark = pytest.mark.device


class Unordered(nn.Module):
    """A network with an operator that has no deterministic implementation."""

    def __init__(self, input_shape: tuple[int, ...], classes: int, **options: Any) -> None:
        super().__init__()
        self.net = mlp(input_shape, classes, **options)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.net(x)
        if self.training:
            with torch.no_grad():
                index = torch.zeros(2, dtype=torch.long, device=x.device)
                torch.zeros(3, device=x.device).put_(index, torch.ones(2, device=x.device))
        return outputs


def test_strict_refuses_operators_without_a_deterministic_form(tmp_path: Path) -> None:
    tables: dict[str, Any] = {"model": {"name": "tests.device.test_determinism:Unordered"}, "local": {"stack": 0}}
    with pytest.raises(RunError, match="put_ does not have a deterministic implementation"):
        run(on("gpu", **tables), out=tmp_path / "strict")
    assert not torch.are_deterministic_algorithms_enabled()
    run(on("gpu", **tables, hosts={"determinism": "fast"}), out=tmp_path / "fast")


@pytest.mark.parametrize(
    ("settings", "strict", "tf32"),
    [
        ({}, True, False),
        ({"tf32": False}, True, False),
        ({"determinism": "fast"}, False, True),
        ({"determinism": "fast", "tf32": False}, False, False),
    ],
)
def test_strict_and_fast_set_what_cuda_needs_and_restore_torch(
    out: Path, settings: dict[str, Any], strict: bool, tf32: bool
) -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32)
    pool = LocalPool(*prepare(on("gpu", hosts=settings)), str(out))
    assert torch.are_deterministic_algorithms_enabled() is strict
    assert (cudnn.deterministic, cudnn.benchmark) == (strict, not strict)
    assert (cudnn.allow_tf32, matmul.allow_tf32) == (tf32, tf32)
    pool.close()
    assert not torch.are_deterministic_algorithms_enabled()
    assert (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32) == before


def test_tf32_is_not_strict() -> None:
    with pytest.raises(ConfigError, match=r'hosts\.tf32.* needs hosts\.determinism = "fast"'):
        on("gpu", hosts={"tf32": True})
    assert on("gpu", hosts={"tf32": True, "determinism": "fast"}).hosts.allow_tf32


def test_the_settings_of_an_accelerator_do_not_apply_to_a_cpu() -> None:
    with deterministic(CPU, True, False):
        assert not torch.are_deterministic_algorithms_enabled(), "CPU hosts are deterministic without it, and faster"


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({"hosts": {"aggregation": "hosts"}}, {"hosts": {"aggregation": "coordinator"}}),
        ({"local": {"stack": 2}}, {"local": {"stack": 6}}),
    ],
    ids=["run again", "other aggregation", "other stacks"],
)
def test_two_runs_give_the_same_bits(tmp_path: Path, device: str, first: Any, second: Any) -> None:
    """One cell each of the table in docs/gpus.md."""
    one, two = (outcome(run(on(device, **t), out=tmp_path / str(k))) for k, t in enumerate((first, second)))
    assert one == two


def test_the_kind_of_device_is_recorded_and_a_change_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = run(on("cpu", rounds=2), out=tmp_path / "run")
    (cpu,) = first.summary["devices"]
    assert cpu.startswith("cpu ")
    with caplog.at_level(logging.WARNING):
        same = run(on("cpu", rounds=4), out=tmp_path / "run", resume=True)
        assert same.summary["devices"] == [cpu]
        assert "ran on" not in caplog.text
        resumed = run(on("gpu", rounds=6), out=tmp_path / "run", resume=True)
    assert f"round 5 ran on standin, the rounds before on {cpu}" in caplog.text
    assert caplog.text.count("ran on") == 1
    assert resumed.summary["devices"] == [cpu, "standin"]


def test_a_share_of_a_gpu_is_a_share_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only CUDA can limit a process's memory, and there is no CUDA here, so this checks only the requested share."""
    asked: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: asked.append(share))
    for device, share in (("cuda", 0.25), ("cuda", 1.0), ("cuda", 2.0), ("cpu", 0.25)):
        limit_share(torch.device(device), share)
    assert asked == [0.25]
