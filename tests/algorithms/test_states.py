"""A custom method with fields of every kind, from its first round to a resumed run."""

import math
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch

from raybcgd import run
from raybcgd.algorithms import FedAvg
from raybcgd.algorithms.api import (
    Count,
    Displacement,
    OwnBlock,
    PerPhase,
    PhaseCounts,
    Round,
    Scalar,
    Task,
    Whole,
    Work,
)
from raybcgd.client.host import ClientHost
from raybcgd.config import Config
from raybcgd.errors import RunError
from raybcgd.messages import ClientTask, RoundOrders
from raybcgd.problem import prepare
from raybcgd.record.checkpoint import Checkpoints
from raybcgd.record.states import SegmentFolder
from raybcgd.server.loop import identity
from tests.conftest import small


class Careful(FedAvg):
    """Careful (nobody, 2026): a client whose loss is above its best takes smaller steps."""

    name: ClassVar[str] = "careful"

    class Server(NamedTuple):
        x: Whole
        loss: Scalar
        rounds: Count

    class Client(NamedTuple):
        moved: Whole
        best: Scalar
        rounds: Count
        received: PerPhase
        seen: PhaseCounts

    class Down(NamedTuple):
        x: Whole
        loss: Scalar

    class Upload(NamedTuple):
        loss: Scalar
        delta: Annotated[OwnBlock, Displacement]

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        x, m = down.x, work.data_phase
        loss = work.loss(x)
        best = torch.where(mine.rounds == 0, loss, torch.minimum(loss, mine.best))
        received, seen = mine.received.clone(), mine.seen.clone()
        received[..., m, :] += x
        seen[..., m] += 1
        delta = work.sgd(x, lambda g, _: g * (best / loss)) - x
        # `rounds` is changed in `settle`, without the integer type; `best` loses its last dimension.
        return self.Upload(loss=loss, delta=delta), self.Client(mine.moved, best[..., 0], mine.rounds, received, seen)

    def terms(self, sent: Any, down: Any, task: Task) -> Any:
        assert down.loss.shape == (1,)
        return sent._replace(delta=sent.delta * (0.5 if bool(down.loss > 0) else 1.0))

    def settle(self, mine: Any, terms: Any) -> Any:
        return mine._replace(moved=mine.moved + terms.delta, rounds=mine.rounds + 1.0)

    def server_rule(self, server: Any, total: Any, rnd: Round) -> Any:
        return self.Server(x=server.x + total.delta, loss=total.loss, rounds=server.rounds + 1)


CYCLIC: dict[str, Any] = {
    "rounds": 6,
    "model": {"dtype": "float64"},
    "data": {"phases": {"count": 3, "rounds_per_phase": 1}},
    "algorithm": Careful(lr=0.05),
}


@pytest.mark.parametrize("stack", [0, 3])
def test_states_hold_what_the_rules_return(lab: Any, stack: int) -> None:
    played = lab.play({**CYCLIC, "local": {"stack": stack}})
    assert played.server.rounds.tolist() == [6]
    assert played.server.rounds.dtype is torch.int64
    arrays = played.problem.state_layout.arrays
    assert sum(math.prod(array.shape) for array in arrays) == 4 * played.problem.layout.size + 1 + 1 + 3
    given = [played.start, *played.xs]
    for client, state in enumerate(played.clients):
        mine = [(r.round, p.block) for r in played.rounds for p in r.participants if p.client == client]
        seen = [sum(index % 3 == phase for index, _ in mine) for phase in range(3)]
        np.testing.assert_array_equal(state["algorithm.rounds"], [len(mine)])
        np.testing.assert_array_equal(state["algorithm.seen"], seen)
        assert state["algorithm.rounds"].dtype == state["algorithm.seen"].dtype == np.int64
        assert state["algorithm.best"].shape == (1,)
        assert bool(state["algorithm.best"] > 0) == bool(mine)
        for phase in range(3):
            received = sum((given[index].numpy() for index, _ in mine if index % 3 == phase), np.zeros_like(given[0]))
            np.testing.assert_allclose(state["algorithm.received"][phase], received, rtol=0, atol=1e-12)
        for number, block in enumerate(played.problem.layout.blocks):
            moved = state["algorithm.moved"][block.slice]
            assert bool(moved.any()) == any(uploaded == number for _, uploaded in mine), "only what was uploaded"


def test_stacked_clients_keep_the_same_states(lab: Any) -> None:
    one, stacked = (lab.play({**CYCLIC, "local": {"stack": stack}}) for stack in (0, 16))
    for name in one.clients[0]:
        np.testing.assert_allclose(one.kept(name), stacked.kept(name), rtol=0, atol=1e-10)


class HalfCount(Careful):
    """Half count (nobody, 2026): counts in halves."""

    def settle(self, mine: Any, terms: Any) -> Any:
        return mine._replace(rounds=mine.rounds + 0.5)


class LongLoss(Careful):
    """Long loss (nobody, 2026): sends a vector as its scalar."""

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        upload, mine = super().client_rule(work, down, mine)
        return upload._replace(loss=upload.delta), mine


class BlockOnly(Careful):
    """Block only (nobody, 2026): returns as many coordinates as a client uploads, not the whole vector."""

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        upload, mine = super().client_rule(work, down, mine)
        return upload._replace(delta=upload.delta[..., :95]), mine


class Transposed(Careful):
    """Transposed (nobody, 2026): swaps the dimensions of a state, which keeps its number of values."""

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        upload, mine = super().client_rule(work, down, mine)
        return upload, mine._replace(received=mine.received.mT)


class LongCount(Careful):
    """Long count (nobody, 2026): counts twice."""

    def settle(self, mine: Any, terms: Any) -> Any:
        return mine._replace(rounds=torch.cat([mine.rounds, mine.rounds], -1))


@pytest.mark.parametrize("stack", [0, 3])
@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (HalfCount, "Client.rounds of HalfCount is Count, but its value is [0.5]; return integers"),
        (LongLoss, "client_rule of LongLoss returned Upload.loss as a {485}; return a {1}"),
        (BlockOnly, "client_rule of BlockOnly returned Upload.delta as a {95}; return a {485}"),
        (LongCount, "settle of LongCount returned Client.rounds as a {2}; return a {1}"),
    ],
)
def test_a_wrong_value_of_a_rule_names_the_method_and_the_field(
    lab: Any, kind: type[Careful], line: str, stack: int
) -> None:
    with pytest.raises(RunError) as error:
        lab.play({**CYCLIC, "algorithm": kind(lr=0.05), "local": {"stack": stack}})
    tensor = r"tensor of shape (1, \1)" if stack else r"tensor of shape (\1,)"
    assert str(error.value) == f"round 1 failed: {re.sub('{([0-9]+)}', tensor, line)}"


@pytest.mark.parametrize(("stack", "clients"), [(0, ""), (3, "1, ")])
def test_a_state_with_swapped_dimensions_is_refused(lab: Any, stack: int, clients: str) -> None:
    with pytest.raises(RunError) as error:
        lab.play({**CYCLIC, "algorithm": Transposed(lr=0.05), "local": {"stack": stack}})
    found = f"client_rule of Transposed returned Client.received as a tensor of shape ({clients}485, 3)"
    assert str(error.value) == f"round 1 failed: {found}; return a tensor of shape ({clients}3, 485)"


def final_states(folder: Path, config: Config) -> list[dict[str, np.ndarray]]:
    problem, data = prepare(config)
    layout = problem.state_layout
    position = Checkpoints(str(folder), 2, identity(problem, data), layout).newest()
    assert position is not None
    assert position.server["rounds"].tolist() == [6]
    trained = position.ledger.clients.tolist()
    rows = SegmentFolder(str(folder / "states"), layout).read([(client, position.ledger[client]) for client in trained])
    return [{name: view[k] for name, view in layout.views(rows).items()} for k in range(len(trained))]


def test_counters_and_scalars_survive_a_checkpoint(tmp_path: Path) -> None:
    config = small(rounds=6, algorithm=Careful(lr=0.05), checkpoint={"every": 3})
    whole = run(config, out=tmp_path / "whole")
    run(config.model_copy(update={"rounds": 3}), out=tmp_path / "parts")
    parts = run(config, out=tmp_path / "parts", resume=True)
    assert parts.summary["sha256"] == whole.summary["sha256"]
    expected, found = (final_states(tmp_path / name, config) for name in ("whole", "parts"))
    assert any(state["algorithm.rounds"] > 1 for state in expected)
    for one, other in zip(expected, found, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


class Absolute(FedAvg):
    """Absolute (nobody, 2026): FedAvg that uploads models; both sides derive the displacement."""

    name: ClassVar[str] = "absolute"

    class Upload(NamedTuple):
        y: Whole

    class Terms(NamedTuple):
        delta: Annotated[Whole, Displacement]

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        return self.Upload(y=work.sgd(down.x)), mine

    def terms(self, sent: Any, down: Any, task: Task) -> Any:
        return self.Terms(delta=sent.y - down.x)


def test_the_displacement_may_be_derived_from_the_upload(lab: Any, tmp_path: Path) -> None:
    changes = {"rounds": 3, "model": {"dtype": "float64"}}
    ours, fedavg = (lab.play({**changes, "algorithm": kind(lr=0.05)}) for kind in (Absolute, FedAvg))
    torch.testing.assert_close(ours.x, fedavg.x, rtol=0, atol=1e-14)
    models = []
    for played in (ours, fedavg):
        host = ClientHost(played.problem, played.data, str(tmp_path), torch.device("cpu"))
        models += host.local_models([ClientTask(2, None)], {"x": played.start.numpy()}, RoundOrders(0, lr=0.05))
    torch.testing.assert_close(*models, rtol=0, atol=1e-14)
    assert not torch.equal(models[0], ours.start)
