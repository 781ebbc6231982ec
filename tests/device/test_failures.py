"""A device that fails: memory runs out, or a client breaks it."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from raybcgd.client.host import ClientHost
from raybcgd.errors import RunError
from raybcgd.experiment import run
from raybcgd.messages import ClientTask, RoundOrders
from raybcgd.problem import Problem, prepare
from tests.device.conftest import on, outcome, with_poison

pytestmark = pytest.mark.device

STACK: dict[str, Any] = {
    "local": {"stack": 16},
    "cohort": {"clients_per_block": None, "clients_per_round": 16},
    "algorithm": {"name": "scaffold", "lr": 0.05},
    "model": {"options": {"hidden": [512]}},
    "blocks": {"count": 1},
}
MANY_STATES: dict[str, Any] = {**STACK, "rounds": 24, "data": {"partition": {"kind": "iid", "clients": 300}}}
"""The states of most of the 300 clients take much more memory than a stack of 16. On a busy machine, torch's threads
keep the tensors of a failed stack for a while."""
POISON: dict[str, Any] = {
    "data": {"partition": {"kind": "iid", "clients": 8}},
    "cohort": {"clients_per_block": None, "clients_per_round": 8, "on_client_error": "drop"},
    "model": {"name": "tests.device.models:Poisonous", "options": {}},
    "blocks": {"count": 1},
}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Repair the device after the test."""
    yield
    torch.standin.poison(False)
    torch.standin.limit_memory(2**40)


def peak(out: Path, tables: dict[str, Any]) -> int:
    """Return the peak memory of a run with stacks of 16 clients."""
    gc.collect()  # earlier runs leave cycles
    torch.accelerator.reset_peak_memory_stats()
    record = run(on("gpu", **tables), out=out).records[-1]
    assert record.hosts.device_memory_bytes is not None
    assert record.hosts.device_reserved_bytes is not None
    assert record.hosts.device_reserved_bytes >= record.hosts.device_memory_bytes > 0
    return record.hosts.device_memory_bytes


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all stacks that a host trains, successfully or not."""
    train, found = ClientHost._train_stack, list[int]()

    def counted(self: ClientHost, tasks: Any, rnd: Any) -> Any:
        found.append(len(tasks))
        return train(self, tasks, rnd)

    monkeypatch.setattr(ClientHost, "_train_stack", counted)
    return found


def test_a_stack_that_does_not_fit_is_halved(out: Path, sizes: list[int]) -> None:
    """If the failed stack still used memory, its halves would not fit either."""
    expected, tables = run(on("cpu", **STACK), out=out / "cpu"), {**STACK, "hosts": {"device_state_memory_mb": 0}}
    torch.standin.limit_memory(int(peak(out / "whole", tables) * 0.7))
    sizes.clear()
    assert outcome(run(on("gpu", **tables), out=out / "halved")) == outcome(expected)
    assert sizes == [16, 8, 8] * 3


def test_states_on_the_device_are_freed_before_a_stack_is_halved(out: Path, sizes: list[int]) -> None:
    expected = run(on("cpu", **MANY_STATES), out=out / "cpu")
    without = peak(out / "without", {**MANY_STATES, "hosts": {"device_state_memory_mb": 0}})
    assert peak(out / "with", MANY_STATES) > 2.4 * without
    gc.collect()
    torch.standin.limit_memory(int(1.8 * without))
    sizes.clear()
    assert outcome(run(on("gpu", **MANY_STATES), out=out / "freed")) == outcome(expected)
    assert len(sizes) > 24
    assert set(sizes) == {16}


def test_a_device_that_breaks_in_an_evaluation_ends_a_run_in_one_process(out: Path, tmp_path: Path) -> None:
    (fuse := tmp_path / "fuse").touch()
    model = {"name": "tests.device.models:BreaksOnce", "options": {"fuse": str(fuse)}}
    with pytest.raises(RunError, match=r"^the accelerator failed during an evaluation: .*device-side assert"):
        run(on("gpu", model=model), out=out)


def test_a_broken_device_is_reported_without_blaming_a_client(out: Path) -> None:
    problem, data = prepare(on("gpu"))
    host = ClientHost(problem, data, str(out), torch.device("standin"))
    torch.standin.poison(True)
    result = host.train([ClientTask(0, 0)], _down(problem), RoundOrders(0, 0.1, reduce=True))
    assert result.lost is not None
    assert result.lost.clients == ()
    assert "device-side assert" in result.lost.cause


def _down(problem: Problem) -> dict[str, torch.Tensor]:
    x = torch.zeros(problem.layout.size)
    return dict.fromkeys(problem.algorithm.Down._fields, x)


def test_a_client_that_breaks_the_device_is_named(out: Path) -> None:
    config = on("gpu", local={"stack": 0}, **POISON)
    with pytest.raises(RunError, match=r"^client \d made the accelerator fail in round 1: .*device-side assert"):
        run(config, dataset=with_poison(8), out=out)
