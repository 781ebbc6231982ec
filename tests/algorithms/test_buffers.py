"""Batch-norm statistics are uploaded and averaged; no server rule applies to them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raybcgd.client.host import ClientHost
from raybcgd.messages import ClientTask, RoundOrders
from raybcgd.model.flat import FlatModel
from raybcgd.problem import prepare
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
