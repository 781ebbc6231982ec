"""A client host without an engine: tasks in, outcomes out."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raybcgd.client.host import ClientHost, one_thread
from raybcgd.client.shards import Shards
from raybcgd.messages import FRESH, ClientTask, Piece, RoundOrders
from raybcgd.problem import Data, Problem, prepare
from raybcgd.server.loop import initial_state
from raybcgd.server.round import RunState, plan_round
from tests.conftest import small

pytestmark = pytest.mark.usefixtures("recording")


@pytest.fixture(autouse=True)
def single_threaded() -> Iterator[None]:
    """Use one thread, as hosts do. The bits of a stacked result depend on it."""
    with one_thread():
        yield


class Setup:
    """A host and everything that one round needs."""

    def __init__(self, folder: Path, **tables: Any) -> None:
        self.problem: Problem
        self.data: Data
        self.problem, self.data = prepare(small(**tables))
        self.state: RunState = initial_state(self.problem, self.data)
        plan = plan_round(self.problem, self.data, self.state.history, 0)
        down = self.problem.algorithm.broadcast(self.state.server, plan.rnd)
        self.down: Mapping[str, np.ndarray] = {name: vector.numpy() for name, vector in down._asdict().items()}
        self.orders: RoundOrders = plan.orders
        self.tasks = [ClientTask(member.client, member.block, FRESH) for member in plan.cohort]
        self.host = ClientHost(self.problem, self.data, str(folder), torch.device("cpu"))

    def another_host(self, folder: Path) -> ClientHost:
        """Return another host of the same run."""
        return ClientHost(self.problem, self.data, str(folder), torch.device("cpu"))


@pytest.mark.parametrize("stack", [0, 4])
def test_train_returns_one_outcome_per_task_in_order_with_the_declared_bytes(tmp_path: Path, stack: int) -> None:
    setup = Setup(tmp_path, local={"stack": stack})
    outcomes = setup.host.train(setup.tasks, setup.down, setup.orders).outcomes
    assert [outcome.client for outcome in outcomes] == [task.client for task in setup.tasks]
    for task, outcome in zip(setup.tasks, outcomes, strict=True):
        assert outcome.error is None
        assert outcome.payload is not None
        assert outcome.payload.nbytes == setup.problem.wire.upload(task.block).bytes
        assert outcome.seconds > 0
        assert np.isfinite(outcome.loss)


@pytest.mark.parametrize("stack", [0, 4])
def test_uploads_do_not_depend_on_how_tasks_are_grouped(tmp_path: Path, stack: int) -> None:
    unequal = {"partition": {"kind": "lognormal", "sigma": 1.0, "clients": 20}}
    setup = Setup(tmp_path / "a", data=unequal, local={"stack": stack})
    together = setup.host.train(setup.tasks, setup.down, setup.orders).outcomes
    other = setup.another_host(tmp_path / "b")
    alone = [other.train([task], setup.down, setup.orders).outcomes[0] for task in reversed(setup.tasks)][::-1]
    for one, two in zip(together, alone, strict=True):
        assert one.payload is not None
        assert two.payload is not None
        assert one.payload.tobytes() == two.payload.tobytes()
        assert one.state.checksum == two.state.checksum
        assert one.loss == two.loss


def test_a_new_state_is_written_for_the_next_round_and_read_by_another_host(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    task = setup.tasks[0]
    (first,) = setup.host.train([task], setup.down, setup.orders).outcomes
    setup.host.hand_over()
    (path,) = tmp_path.iterdir()
    assert first.state._replace(checksum=0) == (path.name, 0, 0)
    later = task._replace(state=first.state)
    orders = setup.orders._replace(round_index=1)
    (here,) = setup.host.train([later], setup.down, orders).outcomes
    (there,) = setup.another_host(tmp_path).train([later], setup.down, orders).outcomes
    (fresh,) = setup.another_host(tmp_path / "elsewhere").train([task], setup.down, orders).outcomes
    assert here.payload is not None
    assert there.payload is not None
    assert fresh.payload is not None
    assert here.payload.tobytes() == there.payload.tobytes()
    assert here.payload.tobytes() != fresh.payload.tobytes()


def test_methods_without_state_write_nothing(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "states", algorithm={"name": "fedavg"})
    outcomes = setup.host.train(setup.tasks, setup.down, setup.orders).outcomes
    assert {outcome.state for outcome in outcomes} == {FRESH}
    assert not (tmp_path / "states").exists()


@pytest.mark.parametrize("stack", [0, 4])
def test_a_failing_client_reports_its_error_and_the_others_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: int
) -> None:
    setup = Setup(tmp_path, local={"stack": stack})
    reference = setup.another_host(tmp_path / "reference").train(setup.tasks, setup.down, setup.orders).outcomes
    bad = setup.tasks[1].client
    load = Shards.shard

    def broken(self: Shards, client: int, orders: RoundOrders) -> Any:
        if client == bad:
            raise OSError("unreadable\nsecond line")
        return load(self, client, orders)

    monkeypatch.setattr(Shards, "shard", broken)
    outcomes = setup.host.train(setup.tasks, setup.down, setup.orders).outcomes
    for outcome, expected in zip(outcomes, reference, strict=True):
        if outcome.client == bad:
            assert outcome.payload is None
            assert outcome.error is not None
            assert outcome.error.startswith("OSError: unreadable (test_host.py:")
        else:
            assert outcome.payload is not None
            assert expected.payload is not None
            assert outcome.payload.tobytes() == expected.payload.tobytes()


def test_the_step_size_comes_from_the_orders(tmp_path: Path) -> None:
    setup = Setup(tmp_path, algorithm={"name": "fedavg", "weight_decay": 0.0}, local={"steps": 1})
    (task, *_), orders = setup.tasks, setup.orders
    uploads = []
    for lr in (orders.lr, 2 * orders.lr):
        (outcome,) = setup.host.train([task], setup.down, orders._replace(lr=lr)).outcomes
        assert outcome.payload is not None
        uploads.append(outcome.payload.view(np.float32))
    np.testing.assert_allclose(uploads[1], 2 * uploads[0], rtol=1e-3, atol=1e-6)


def test_evaluation_in_pieces_adds_up_to_the_whole(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    x = setup.down["x"]
    total = len(setup.data.test_rows[0])
    (whole,) = setup.host.evaluate([Piece(0, 0, total)], [x])
    parts = setup.host.evaluate([Piece(0, a, min(a + 100, total)) for a in range(0, total, 100)], [x])
    assert whole.samples == sum(part.samples for part in parts) == total
    assert whole.correct == sum(part.correct for part in parts)
    assert whole.loss == pytest.approx(sum(part.loss for part in parts), rel=1e-5)


def test_training_after_an_evaluation_is_unchanged(tmp_path: Path) -> None:
    setup = Setup(
        tmp_path / "a",
        model={"name": "resnet8", "options": {"width": 4, "norm": "batch"}},
        blocks={"division": "resnet8"},
    )
    (first, *_) = setup.host.train(setup.tasks[:1], setup.down, setup.orders).outcomes
    other = setup.another_host(tmp_path / "b")
    other.evaluate([Piece(0, 0, 50)], [setup.down["x"]])
    (second, *_) = other.train(setup.tasks[:1], setup.down, setup.orders).outcomes
    assert first.payload is not None
    assert second.payload is not None
    assert first.payload.tobytes() == second.payload.tobytes()
