"""Baselines that equal another method, or a computation by hand."""

from typing import Any

import numpy as np
import pytest
import torch

from raybcgd.algorithms import ALGORITHMS, FedAdam
from raybcgd.model.flat import FlatModel


def method(name: str, **settings: Any) -> dict[str, Any]:
    return {"algorithm": {"name": name, "lr": 0.1, **settings}}


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.xs, other.xs, strict=True)) and not torch.equal(one.x, one.start)


@pytest.fixture(params=[0, 16], ids=["one-by-one", "stacked"])
def stack(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"rounds": 4, "local": {"stack": request.param}}


def test_fedprox_with_mu_zero_is_fedavg(lab: Any, stack: dict[str, Any]) -> None:
    fedavg = lab.play({**stack, **method("fedavg")})
    assert same(lab.play({**stack, **method("fedprox", mu=0.0)}), fedavg)
    assert not same(lab.play({**stack, **method("fedprox", mu=1.0)}), fedavg)


def test_fedprox_stays_closer_to_x_for_larger_mu(lab: Any) -> None:
    moved = [
        float((played.x - played.start).norm())
        for played in (lab.play({"rounds": 1, **method("fedprox", mu=mu)}) for mu in (0.0, 1.0, 5.0))
    ]
    assert moved[0] > moved[1] > moved[2]


def test_fedadam_is_torchs_adam_with_the_bias_correction_undone() -> None:
    """torch divides m by b1 and sqrt(u) by b2: the same step with lr = eta b1/b2 and eps = tau/b2."""
    fedadam = FedAdam(server_lr=0.03, beta1=0.8, beta2=0.95, tau=1e-3)
    rng = torch.Generator().manual_seed(0)
    start = torch.randn(20, generator=rng, dtype=torch.float64)
    parameter = start.clone().requires_grad_()
    adam = torch.optim.Adam([parameter], betas=(0.8, 0.95))
    server = fedadam.server_init(start)
    for t in range(1, 8):
        delta = torch.randn(20, generator=rng, dtype=torch.float64)
        server = fedadam.server_rule(server, fedadam.Upload(delta=delta), None)
        b1, b2 = 1 - 0.8**t, (1 - 0.95**t) ** 0.5
        adam.param_groups[0].update(lr=0.03 * b1 / b2, eps=1e-3 / b2)
        parameter.grad = -delta
        adam.step()
        torch.testing.assert_close(server.x, parameter.detach(), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("control_upload", ["derived", "sent"])
def test_scaffold_with_one_full_step_keeps_the_gradient(lab: Any, control_upload: str) -> None:
    """After its last round, c_i is the full local gradient at the x that the client received."""
    played = lab.play(
        {
            "rounds": 3,
            "model": {"dtype": "float64"},
            "local": {"steps": 1, "batch_size": "full"},
            **method("scaffold", control_upload=control_upload),
        }
    )
    problem, data = played.problem, played.data
    given = [played.start, *played.xs]
    last = {p.client: r.round for r in played.rounds for p in r.participants}
    flat = FlatModel(problem.module(), problem.layout, problem.dtype, torch.device("cpu"))
    dataset = data.dataset
    for client, index in last.items():
        rows = data.partitions[0].client(client)
        inputs = (
            torch.from_numpy(dataset.train.inputs[rows]).double() / dataset.scale - dataset.mean[0]
        ) / dataset.std[0]
        flat.vector.copy_(given[index])
        flat.gradient.zero_()
        problem.loss(flat.module(inputs), torch.from_numpy(dataset.train.targets[rows])).backward()
        expected = flat.gradient + problem.config.algorithm.weight_decay * flat.vector
        np.testing.assert_allclose(played.clients[client]["algorithm.c"], expected.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["scaffold", "fedpvr"])
def test_c_is_the_mean_of_the_clients(lab: Any, name: str) -> None:
    for how in ("derived", "sent"):
        played = lab.play({"rounds": 25, **method(name, lr=0.05, control_upload=how)})
        ci = played.kept("algorithm.c").astype(np.float64)
        np.testing.assert_allclose(played.server.c.numpy(), ci.mean(axis=0), rtol=0, atol=2e-6 * np.abs(ci).max())
        assert np.abs(ci).max() > 0
        if name == "fedpvr":
            shared = played.problem.layout.shared
            assert not ci[:, : shared.start].any()
            assert np.abs(ci[:, shared.slice]).max() > 0


@pytest.mark.parametrize("name", ["scaffold", "fedpvr"])
def test_derived_and_sent_control_variates_are_the_same_run(lab: Any, stack: dict[str, Any], name: str) -> None:
    derived, sent = (lab.play({**stack, **method(name, control_upload=how)}) for how in ("derived", "sent"))
    assert same(derived, sent)
    layout = sent.problem.layout
    clients = len(sent.rounds[0].participants)
    extra = layout.size if name == "scaffold" else layout.shared.size
    assert derived.uploads[0].floats == clients * layout.size
    assert sent.uploads[0].floats == clients * (layout.size + extra)
    assert sent.uploads[0].bytes == 4 * sent.uploads[0].floats


@pytest.mark.parametrize("control_upload", ["derived", "sent"])
def test_fedpvr_with_all_layers_shared_is_scaffold(lab: Any, stack: dict[str, Any], control_upload: str) -> None:
    blocks = {"blocks": {"shared": "all"}}
    pvr = lab.play({**stack, **blocks, **method("fedpvr", control_upload=control_upload)})
    scaffold = lab.play({**stack, **blocks, **method("scaffold", control_upload=control_upload)})
    assert same(pvr, scaffold)
    assert torch.equal(pvr.server.c, scaffold.server.c)
    assert pvr.uploads == scaffold.uploads


@pytest.mark.parametrize("control_upload", ["derived", "sent"])
def test_fedpvr_without_a_shared_block_is_fedavg(lab: Any, stack: dict[str, Any], control_upload: str) -> None:
    blocks = {"blocks": {"shared": "none"}}
    fedavg = lab.play({**stack, **blocks, **method("fedavg")})
    plain = lab.play({**stack, **blocks, **method("fedpvr", local_momentum=0.0, control_upload=control_upload)})
    assert same(plain, fedavg)
    assert plain.uploads[0] == fedavg.uploads[0]
    assert not same(lab.play({**stack, **blocks, **method("fedpvr", local_momentum=0.5)}), fedavg)


def test_feddc_starts_as_fedavg(lab: Any, stack: dict[str, Any]) -> None:
    """With alpha = 0 and zero states, clients train as in FedAvg; the drift then doubles the server's step."""
    stack = {**stack, "rounds": 1}
    ours, fedavg = lab.play({**stack, **method("feddc", alpha=0.0)}), lab.play({**stack, **method("fedavg")})
    assert torch.equal(ours.start + ours.server.a, fedavg.x)
    assert torch.equal(ours.x, ours.start + 2 * ours.server.a)
    took_part = [p.client for p in ours.rounds[0].participants]
    h, a = ours.kept("algorithm.h"), ours.kept("algorithm.a")
    np.testing.assert_array_equal(h, a)
    np.testing.assert_allclose(a[took_part].mean(axis=0), ours.server.a.numpy(), atol=1e-6)
    assert ours.uploads[0].floats == 2 * fedavg.uploads[0].floats


def test_feddc_with_the_drift_of_all_clients_matches_the_paper_under_full_participation(lab: Any) -> None:
    changes = {"rounds": 5, "model": {"dtype": "float64"}, "cohort": {"clients_per_round": 8}}
    printed, ours = (lab.play({**changes, **method("feddc", drift=drift)}) for drift in ("sampled", "all"))
    torch.testing.assert_close(ours.x, printed.x, rtol=0, atol=1e-12)
    assert 2 * ours.uploads[0].bytes == printed.uploads[0].bytes


@pytest.mark.parametrize("wire", [{}, {"codec": "qsgd", "levels": 7}])
def test_the_feddc_server_keeps_the_mean_drift_of_all_clients(lab: Any, wire: dict[str, Any]) -> None:
    played = lab.play({"rounds": 10, "model": {"dtype": "float64"}, "wire": wire, **method("feddc", drift="all")})
    h = played.kept("algorithm.h")
    np.testing.assert_allclose(played.server.h.numpy(), h.mean(axis=0), rtol=0, atol=1e-12 * np.abs(h).max())


def test_centralised_sgd_trains_on_the_samples_of_all_clients(lab: Any) -> None:
    federated = lab.play({"rounds": 1, **method("fedavg")})
    central = lab.play({"rounds": 3, **method("sgd")})
    assert len(central.data.partitions[0]) == 1
    mine = central.data.partitions[0].client(0)
    assert sorted(federated.data.partitions[0].indices) == list(mine)
    assert [p.client for r in central.rounds for p in r.participants] == [0, 0, 0]
    assert central.rounds[-1].participants[0].loss < central.rounds[0].participants[0].loss


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_training_in_stacks_and_one_by_one_is_identical_for_every_method(lab: Any, name: str) -> None:
    changes = {"rounds": 3, **method(name, lr=0.05)}
    one, stacked = (lab.play({**changes, "local": {"stack": size}}) for size in (0, 3))
    torch.testing.assert_close(one.x, stacked.x, rtol=1e-3, atol=1e-4)
    losses = [np.mean([p.loss for p in r.participants]) for r in one.rounds]
    assert losses[-1] < losses[0] * 1.2
