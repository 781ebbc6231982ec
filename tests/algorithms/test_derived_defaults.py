"""What follows from the declarations of a method: initial states, broadcasts, sizes and mean gradients."""

from typing import Any, ClassVar, NamedTuple

import pytest
import torch

from raybcgd.algorithms import ALGORITHMS, FedAvg, FedDC
from raybcgd.algorithms.api import (
    ControlVariate,
    Count,
    Momentum,
    Nothing,
    PerPhase,
    PhaseCounts,
    Round,
    Scalar,
    Task,
    Whole,
)
from raybcgd.algorithms.contract import Kind, declared, displacement, marked, size_in_d

ROUND = Round(index=0, clients=10, lr=0.1, steps=5.0, data_phase=1)

SERVERS: dict[str, dict[str, float]] = {
    "fedavg": {},
    "fedavgm": {"v": 0.0},
    "fedadam": {"m": 0.0, "u": 0.0},
    "fedprox": {},
    "scaffold": {"c": 0.0},
    "feddc": {"a": 0.0, "h": 0.0},
    "fedpvr": {"c": 0.0},
    "fedbcgd": {"v": 0.0},
    "fedbcgd+": {"v": 0.0, "c": 0.0},
    "mm_psgd": {"predictors": 1.0, "seen": 0},
    "mc_psgd": {"chains": 1.0, "predictors": 1.0, "seen": 0},
    "sgd": {},
}
"""The server's fields other than x: initially zero (0.0), x in every phase (1.0), or integers."""
CLIENTS = {"scaffold": ("c",), "fedpvr": ("c",), "feddc": ("h", "a"), "fedbcgd+": ("c",)}
DOWN = {
    "scaffold": ("x", "c"),
    "fedpvr": ("x", "c"),
    "feddc": ("x", "a"),
    "fedbcgd+": ("x", "c"),
    "mc_psgd": ("x", "z"),
}


@pytest.mark.parametrize("name", list(SERVERS))
def test_initial_states_and_broadcasts_of_these_methods(name: str) -> None:
    algorithm, x = ALGORITHMS.resolve(name)(), torch.arange(4, dtype=torch.float64)
    server = algorithm.server_init(x, 3)
    assert server.x is x
    assert list(server._fields) == ["x", *SERVERS[name]]
    for field, value in SERVERS[name].items():
        found = getattr(server, field)
        if field == "seen":
            assert found.dtype is torch.int64
            assert found.tolist() == [0, 0, 0]
        else:
            assert torch.equal(found, x.repeat(3, 1) if value else torch.zeros_like(x))
    client = algorithm.client_init(x)
    assert client._fields == CLIENTS.get(name, ())
    assert all(torch.equal(vector, torch.zeros_like(x)) for vector in client)
    down = algorithm.broadcast(server, ROUND)
    assert down._fields == DOWN.get(name, ("x",))
    assert all(value is getattr(server, field) for field, value in down._asdict().items() if field != "z")


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_initial_states_and_broadcasts_follow_from_the_declarations(name: str) -> None:
    """This covers every built-in method, including those that `SERVERS` does not list."""
    algorithm, x = ALGORITHMS.resolve(name)(), torch.arange(4, dtype=torch.float64)
    server = algorithm.server_init(x, 3)
    for state, declaration in ((server, algorithm.Server), (algorithm.client_init(x, 3), algorithm.Client)):
        assert type(state) is declaration
        for field, value in zip(declared(declaration), state, strict=True):
            assert (tuple(value.shape), value.dtype) == (field.shape(4, 3), field.dtype(x.dtype)), field.name
    down = algorithm.broadcast(server, ROUND)
    assert type(down) is algorithm.Down
    assert all(
        value.numel() == (4 if f.per_coordinate else 1) for f, value in zip(declared(type(down)), down, strict=True)
    )


class Rich(FedAvg):
    """Rich (nobody, 2026): keeps a field of every kind."""

    name: ClassVar[str] = "rich"

    class Client(NamedTuple):
        c: Whole
        best: Scalar
        rounds: Count
        past: PerPhase
        seen: PhaseCounts


def test_a_state_of_every_kind_starts_at_zero() -> None:
    state = Rich().client_init(torch.ones(4), 3)
    assert {name: (tuple(v.shape), v.dtype) for name, v in state._asdict().items()} == {
        "c": ((4,), torch.float32),
        "best": ((1,), torch.float32),
        "rounds": ((1,), torch.int64),
        "past": ((3, 4), torch.float32),
        "seen": ((3,), torch.int64),
    }
    assert not any(bool(value.any()) for value in state)
    assert [field.name for field in declared(Rich.Client) if field.per_coordinate] == ["c", "past"]
    assert size_in_d(Rich.Client, phases=3) == 4


def test_sizes_follow_from_the_declarations() -> None:
    def upload(name: str, **settings: Any) -> float:
        return size_in_d(ALGORITHMS.resolve(name)(**settings).upload_type, own=0.22, shared=0.02)

    assert upload("fedavg") == 1
    assert upload("mc_psgd") == 2
    assert upload("fedbcgd+") == 0.22
    assert upload("fedbcgd+", control_upload="sent") == 0.44
    assert upload("fedpvr", control_upload="sent") == 1.02
    assert size_in_d(Nothing) == 0


def test_declarations_can_be_read() -> None:
    c = declared(ALGORITHMS.resolve("fedbcgd+").Terms)[1]
    assert (c.name, c.kind, c.summed) == ("dc", Kind.OWN, True)
    assert marked(ALGORITHMS.resolve("fedadam").Server, Momentum) == ("m",)
    assert marked(FedDC.Server, ControlVariate) == ("h",)


def test_selecting_terms_without_a_displacement_is_refused() -> None:
    """The class declares terms with the mark, but its hyper-parameters select an upload without it."""
    with pytest.raises(TypeError, match=r"SentUpload has no Displacement; write delta: Annotated\[Whole"):
        displacement(ALGORITHMS.resolve("scaffold").SentUpload)


def test_mean_gradients_in_a_stack_equal_those_of_single_clients_bit_for_bit() -> None:
    rng = torch.Generator().manual_seed(0)
    delta, trained = torch.randn(3, 50, generator=rng), torch.ones(50)
    trained[7] = 0
    steps, lr = [5, 12, 7], 0.03 * 0.998**17
    stack = Task(torch.tensor(steps, dtype=torch.float64)[:, None], lr, trained, slice(40, 50))
    for row, count in enumerate(steps):
        one = Task(count, lr, trained, slice(40, 50)).mean_gradient(delta[row])
        assert torch.equal(one, delta[row] / -(count * lr) * trained)
        assert torch.equal(one, stack.mean_gradient(delta)[row])
