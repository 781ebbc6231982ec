"""Batch-norm statistics are uploaded and averaged; no server rule applies to them."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from raybcgd.algorithms.api import Whole, Work
from raybcgd.algorithms.fedavg import FedAvg
from raybcgd.client.host import ClientHost
from raybcgd.engine.local import LocalPool
from raybcgd.messages import ClientTask, RoundOrders
from raybcgd.model.flat import FlatModel
from raybcgd.problem import prepare
from raybcgd.server.loop import initial_state
from raybcgd.server.round import plan_round, run_round
from tests.algorithms.conftest import digits
from tests.conftest import small

METHODS: list[dict[str, Any]] = [
    {"name": "fedavg"},
    {"name": "fedavgm", "momentum": 0.9},
    {"name": "fedbcgd", "momentum": 0.9},
    {"name": "fedbcgd+", "momentum": 0.9},
    {"name": "fedbcgd+", "control": "anchor", "control_upload": "sent"},
    {"name": "fedadam"},
    {"name": "fedprox"},
    {"name": "scaffold", "server_lr": 1.5},
    {"name": "feddc"},
    {"name": "fedpvr"},
]


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))


@pytest.mark.parametrize("algorithm", METHODS, ids=lambda a: "-".join(str(v) for v in a.values()))
def test_statistics_are_averaged_under_every_server_rule(lab: Any, algorithm: dict[str, Any]) -> None:
    changes = {
        "rounds": 6,
        "blocks": {"count": 1, "shared": "all" if algorithm["name"] == "fedpvr" else "none"},
        "model": {"options": None},
        "algorithm": {"lr": 0.05, **algorithm},
    }
    played = lab.play(changes, module=normed())
    flat = FlatModel(normed(), played.problem.layout, torch.float32, torch.device("cpu"))
    assert flat.trained is not None
    assert int((flat.trained == 0).sum()) == 12
    buffers = flat.trained == 0
    x = flat.named(played.x)
    assert bool((x["2.running_var"] > 0).all())
    assert not torch.equal(played.x[buffers], played.start[buffers])
    if "c" in played.server._fields:
        assert not bool(played.server.c[buffers].any())
        assert not played.kept("algorithm.c")[:, buffers.numpy()].any()
        assert np.abs(played.kept("algorithm.c")).max() > 0


class ClientMomentum(FedAvg):
    """ClientMomentum: each client adds its previous displacement to its new one."""

    name: ClassVar[str] = "client_momentum"
    masked: bool = True

    class Client(NamedTuple):
        last: Whole

    def client_rule(self, work: Work, down: Any, mine: Any) -> tuple[Any, Any]:
        delta = work.sgd(down.x) - down.x
        change = 0.9 * mine.last if work.trained is None or not self.masked else 0.9 * mine.last * work.trained
        return self.Upload(delta=delta + change), self.Client(last=delta + change)


def test_a_client_rule_can_leave_statistics_unchanged(lab: Any) -> None:
    """With a step size of almost 0, only the statistics move, as under FedAvg unless the rule adds something."""
    runs = []
    methods: list[dict[str, Any]] = [
        {"name": "fedavg"},
        *({"name": ClientMomentum, "masked": m} for m in (True, False)),
    ]
    for method in methods:
        changes = {
            "rounds": 4,
            "blocks": {"count": 1, "shared": "none"},
            "model": {"options": None},
            "algorithm": {**method, "lr": 1e-12, "weight_decay": 0},
        }
        runs.append(lab.play(changes, module=normed()))
    trained = FlatModel(normed(), runs[0].problem.layout, torch.float32, torch.device("cpu")).trained
    fedavg, masked, unmasked = (run.x[trained == 0] for run in runs)
    torch.testing.assert_close(masked, fedavg)
    assert float((unmasked - fedavg).abs().max()) > 0.1


def test_server_momentum_does_not_apply_to_statistics(lab: Any) -> None:
    """Two rounds: momentum is zero in the first."""
    runs = {}
    others = [("fedavgm", {"momentum": 0.9}), ("fedadam", {}), ("scaffold", {"server_lr": 2.0}), ("feddc", {})]
    for name, settings in [("fedavg", {}), *others]:
        changes = {
            "rounds": 2,
            "blocks": {"count": 1, "shared": "none"},
            "model": {"options": None},
            "algorithm": {"name": name, "lr": 1e-12, "weight_decay": 0, **settings},
        }
        runs[name] = lab.play(changes, module=normed())
    layout = runs["fedavg"].problem.layout
    buffers = FlatModel(normed(), layout, torch.float32, torch.device("cpu")).trained == 0
    for name, _ in others:
        torch.testing.assert_close(runs["fedavg"].x[buffers], runs[name].x[buffers])


def test_an_upload_does_not_depend_on_the_clients_trained_before(tmp_path: Path) -> None:
    """A batch norm with momentum=None weights by its batch count, which is not part of the model vector."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 10))
    problem, data = prepare(small(algorithm={"name": "fedavg"}, blocks={"count": 1}), module=module)
    down = {"x": FlatModel(problem.module(), problem.layout, torch.float32, torch.device("cpu")).vector.numpy()}
    uploads = []
    for clients in ([5], [2, 9, 5]):
        host = ClientHost(problem, data, str(tmp_path), torch.device("cpu"))
        outcomes = host.train([ClientTask(client, None) for client in clients], down, RoundOrders(0, lr=0.1)).outcomes
        uploads.append(outcomes[-1].payload)
    np.testing.assert_array_equal(*uploads)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("where", ["hosts", "coordinator"])
def test_no_measurement_but_the_traffic_counts_statistics(tmp_path: Path, where: str, weighting: str) -> None:
    """The inputs are large, so that the statistics move much further than the parameters."""
    dataset = digits()
    config = small(
        rounds=1,
        algorithm={"name": "fedbcgd", "lr": 1e-3, "momentum": 0.5},
        blocks={"division": "equal", "count": 2, "shared": 30, "redivide_every": 5, "redivide": "drift"},
        cohort={"assignment": "need", "clients_per_block": 3, "weighting": weighting},
        hosts={"aggregation": where},
    )
    problem, data = prepare(config, normed(), replace(dataset, scale=dataset.scale / 1000))
    pool, before = LocalPool(problem, data, str(tmp_path)), initial_state(problem, data)
    plan = plan_round(problem, data, before.history, 0)
    after, record = run_round(problem, data, pool, before)
    pool.close()

    trained = problem.trained
    assert trained is not None
    buffers = trained == 0
    step = after.server.x - before.server.x
    assert float(step[buffers].norm()) > 100 * float(step[~buffers].norm()) > 0
    assert not after.history.moved[buffers.numpy()].any()
    assert not np.nan_to_num(after.history.drifted)[buffers.numpy()].any()
    assert after.history.moved.any()
    assert after.history.drifted.any()
    host = ClientHost(problem, data, str(tmp_path), torch.device("cpu"))
    tasks = [ClientTask(*item.member) for item in plan.expected]
    models = host.local_models(tasks, {"x": before.server.x.numpy()}, plan.orders)
    for number, block in enumerate((*plan.wire.layout.blocks, plan.wire.layout.shared)):
        parameters = block.slice
        mask = trained[parameters]
        own = [
            ((model - before.server.x)[parameters] * mask).double()
            for model, task in zip(models, tasks, strict=True)
            if task.block == number or number == 2
        ]
        diversity = sum(float(m @ m) for m in own) / float(sum(own) @ sum(own))
        assert record.blocks.drift_diversity[number] == pytest.approx(diversity, rel=1e-3)
        assert record.blocks.movement[number] == pytest.approx(float((step[parameters] * mask).norm()), rel=1e-5)
        assert record.blocks.momentum is not None
        assert record.blocks.momentum[number] == pytest.approx(
            float((after.server.v[parameters] * mask).norm()), rel=1e-5
        )
    assert record.traffic.upload_floats == sum(plan.wire.upload(task.block).floats for task in tasks)
    assert problem.parameters == problem.layout.size - 12
