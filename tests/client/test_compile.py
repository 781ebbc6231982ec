"""Local training with torch.compile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.registry import _COMPILER_FNS, register_backend

from raybcgd.errors import ConfigError
from raybcgd.experiment import run
from tests.conftest import small

CALLS: list[int] = []
"""The number of operations of each compiled graph, once per call."""


def counting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A backend that runs the operations as they are, and counts the calls."""

    def called(*arguments: Any) -> Any:
        CALLS.append(len(graph.graph.nodes))
        return graph.forward(*arguments)

    return called


@pytest.fixture(autouse=True)
def backend() -> None:
    CALLS.clear()
    if "counting" not in _COMPILER_FNS:
        register_backend(counting, name="counting")


@pytest.mark.parametrize("stack", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_every_step_runs_compiled_and_gives_the_same_bits(tmp_path: Path, stack: int) -> None:
    local, sgd = {"stack": stack, "steps": 3}, {"name": "fedavg", "lr": 0.05}
    plain, compiled = (
        run(small(rounds=1, algorithm=sgd, local={**local, "compile": name}), out=tmp_path / str(name))
        for name in (None, "counting")
    )
    assert compiled.summary["sha256"] == plain.summary["sha256"]
    clients = len(compiled.records[0].participants)
    assert len(CALLS) == 3 * (clients if stack == 0 else -(-clients // stack))


def test_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r'local\.compile = "fast" is not a backend of torch.compile; use one of .*inductor'
    ):
        run(small(local={"compile": "fast"}), out=tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("stack", [0, 4])
def test_inductor_computes_the_same_up_to_rounding(tmp_path: Path, stack: int) -> None:
    plain, compiled, again = (
        run(small(rounds=2, local={"stack": stack, "compile": name}), out=tmp_path / f"{number}")
        for number, name in enumerate((None, "inductor", "inductor"))
    )
    torch.testing.assert_close(compiled.model.state_dict(), plain.model.state_dict(), rtol=1e-4, atol=1e-5)
    assert again.summary["sha256"] == compiled.summary["sha256"]
