"""Special cases in which FedBCGD and FedBCGD+ equal another method, and invariants of every round."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raybcgd.data.dataset import Dataset

ONE_BLOCK = {"count": 1, "shared": "none"}


def algorithm(name: str, **settings: Any) -> dict[str, Any]:
    return {"algorithm": {"name": name, "lr": 0.1, **settings}}


@pytest.mark.parametrize("stack", [0, 16])
def test_fedbcgd_with_one_block_is_fedavgm_bit_for_bit(lab: Any, stack: int) -> None:
    same = {"rounds": 5, "blocks": ONE_BLOCK, "local": {"stack": stack}}
    ours = lab.play({**same, **algorithm("fedbcgd", momentum=0.7)})
    theirs = lab.play({**same, **algorithm("fedavgm", momentum=0.7)})
    assert torch.equal(ours.x, theirs.x)
    assert torch.equal(ours.server.v, theirs.server.v)
    assert not torch.equal(ours.x, ours.start)
    assert ours.uploads == theirs.uploads


@pytest.mark.parametrize("stack", [0, 16])
def test_fedbcgd_with_one_block_and_no_momentum_is_fedavg_bit_for_bit(lab: Any, stack: int) -> None:
    same = {"rounds": 5, "blocks": ONE_BLOCK, "local": {"stack": stack}}
    ours = lab.play({**same, **algorithm("fedbcgd", momentum=0.0)})
    theirs = lab.play({**same, **algorithm("fedavg")})
    assert all(torch.equal(a, b) for a, b in zip(ours.xs, theirs.xs, strict=True))
    assert not torch.equal(ours.x, ours.start)


@pytest.mark.parametrize("stack", [0, 16])
def test_fedbcgd_plus_with_one_client_and_the_full_batch_is_gradient_descent(lab: Any, stack: int) -> None:
    """Compare with six lines of plain torch: one client, one block, no momentum, T = 4 steps per round."""
    rounds, steps, lr, decay, weight_decay = 3, 4, 0.2, 0.9, 0.01
    rng = np.random.default_rng(0)
    inputs, targets = rng.standard_normal((30, 6)), rng.integers(0, 3, 30)
    dataset = Dataset.from_tensors(inputs, targets, inputs, targets)
    module = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    reference = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    reference.load_state_dict(module.state_dict())
    for round_index in range(rounds):
        for _ in range(steps):
            loss = nn.functional.cross_entropy(reference(torch.from_numpy(inputs)), torch.from_numpy(targets))
            grads = torch.autograd.grad(loss, list(reference.parameters()))
            with torch.no_grad():
                for p, g in zip(reference.parameters(), grads, strict=True):
                    p -= lr * decay**round_index * (g + weight_decay * p)
    played = lab.play(
        {
            "rounds": rounds,
            "data": {"partition": {"kind": "iid", "rho": None, "clients": 1, "samples_per_client": None}},
            "model": {"dtype": "float64", "options": None},
            "blocks": ONE_BLOCK,
            "local": {"steps": steps, "batch_size": "full", "stack": stack},
            "cohort": {"clients_per_round": 1},
            "algorithm": {"name": "fedbcgd+", "lr": lr, "lr_decay": decay, "weight_decay": weight_decay, "momentum": 0},
        },
        module=module,
        dataset=dataset,
    )
    expected = torch.cat([p.detach().reshape(-1) for p in reference.parameters()])
    torch.testing.assert_close(played.x, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("control", "control_upload"), [("path", "derived"), ("path", "sent"), ("anchor", "sent")])
def test_c_is_the_mean_of_the_clients_after_50_rounds_of_partial_participation(
    lab: Any, control: str, control_upload: str
) -> None:
    played = lab.play({"rounds": 50, **algorithm("fedbcgd+", lr=0.05, control=control, control_upload=control_upload)})
    ci, c = played.kept("algorithm.c").astype(np.float64), played.server.c.numpy()
    assert (np.abs(ci).max(axis=0) > 0).mean() > 0.9
    np.testing.assert_allclose(c, ci.mean(axis=0), rtol=0, atol=2e-6 * np.abs(ci).max())


def test_committing_coordinates_that_were_not_uploaded_breaks_the_mean(lab: Any) -> None:
    """The paper's rule, commit = "all", breaks the invariant above, so it is not the default."""
    played = lab.play({"rounds": 20, **algorithm("fedbcgd+", lr=0.05, commit="all")})
    gap = np.abs(played.server.c.numpy() - played.kept("algorithm.c").mean(axis=0))
    assert gap.max() > 1e-2


def test_the_printed_factor_divides_the_shared_control_variate_by_the_number_of_blocks(lab: Any) -> None:
    """1/(MN) makes c on the shared block N times too small from the first round on, so it is not the default."""
    ours, printed = (
        lab.play({"rounds": 1, **algorithm("fedbcgd+", lr=0.05, shared_control=factor)}) for factor in ("1/M", "1/(MN)")
    )
    blocks, shared = len(ours.problem.layout.blocks), ours.problem.layout.shared
    assert blocks > 1
    assert torch.equal(printed.server.c[: shared.start], ours.server.c[: shared.start])
    torch.testing.assert_close(printed.server.c[shared.slice], ours.server.c[shared.slice] / blocks)
    assert bool(printed.server.c[shared.slice].any())


@pytest.mark.parametrize("stack", [0, 16])
def test_derived_and_sent_control_variates_give_the_same_trajectory_for_half_the_upload(lab: Any, stack: int) -> None:
    derived, sent = (
        lab.play({"rounds": 6, "local": {"stack": stack}, **algorithm("fedbcgd+", control_upload=how)})
        for how in ("derived", "sent")
    )
    assert all(torch.equal(a, b) for a, b in zip(derived.xs, sent.xs, strict=True))
    np.testing.assert_array_equal(derived.kept("algorithm.c"), sent.kept("algorithm.c"))
    for one, two in zip(derived.uploads, sent.uploads, strict=True):
        assert 2 * one.floats == two.floats
        assert 2 * one.bytes == two.bytes


@pytest.mark.parametrize("stack", [0, 16])
def test_cached_and_recomputed_anchors_give_the_same_bits(lab: Any, stack: int) -> None:
    kept, recomputed = (
        lab.play({"rounds": 4, "local": {"stack": stack, "anchor_memory_mb": memory}, **algorithm("fedbcgd+")})
        for memory in (512.0, 0.0)
    )
    assert torch.equal(kept.x, recomputed.x)


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("name", ["fedavg", "fedbcgd", "fedbcgd+"])
def test_training_in_stacks_and_one_by_one_is_identical(lab: Any, name: str) -> None:
    runs = [lab.play({"rounds": 4, "local": {"stack": stack}, **algorithm(name)}).x for stack in (0, 1, 3, 16)]
    assert all(torch.equal(runs[1], other) for other in runs[2:]), "the stack size must not change the bits"
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-4, atol=1e-5)


def own_coordinates(problem: Any, block: int) -> Tensor:
    mask = torch.zeros(problem.layout.size, dtype=torch.bool)
    for s in problem.layout.own(block):
        mask[s] = True
    return mask


@pytest.mark.parametrize("stack", [0, 16])
@pytest.mark.parametrize("name", ["fedbcgd", "fedbcgd+"])
def test_freezing_trains_only_the_uploaded_coordinates(lab: Any, name: str, stack: int) -> None:
    from raybcgd.client.training import LocalWork

    moved = []
    original = LocalWork.sgd

    def spy(self: LocalWork, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        y = original(self, x, *args, **kwargs)
        moved.append((y - x).reshape(-1, x.shape[-1]))
        return y

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalWork, "sgd", spy)
        frozen = lab.play({"rounds": 1, "local": {"stack": stack}, **algorithm(name, freeze=True)})
        free = lab.play({"rounds": 1, "local": {"stack": stack}, **algorithm(name, freeze=False)})
    rows = torch.cat(moved)
    cohort = [p.block for p in frozen.rounds[0].participants]
    for row, block in enumerate(cohort):
        own = own_coordinates(frozen.problem, block)
        assert bool((rows[row][~own] == 0).all())
        assert bool((rows[row][own] != 0).any())
        assert bool((rows[len(cohort) + row][~own] != 0).any())
    assert not torch.equal(frozen.x, free.x)


@pytest.mark.parametrize(
    ("name", "settings", "factor"),
    [
        ("fedbcgd", {}, 1),
        ("fedbcgd+", {}, 1),
        ("fedbcgd+", {"control_upload": "sent"}, 2),
        ("fedbcgd+", {"control_upload": "sent", "control": "anchor"}, 2),
    ],
)
@pytest.mark.parametrize("shared", ["last", "none"])
def test_an_upload_contains_exactly_the_declared_slices(
    lab: Any, name: str, settings: dict[str, Any], factor: int, shared: str
) -> None:
    for block in (0, 1):
        problem, payload = lab.upload({"blocks": {"shared": shared}, **algorithm(name, **settings)}, 0, block)
        floats = problem.layout.blocks[block].size + problem.layout.shared.size
        assert payload.nbytes == factor * 4 * floats
        assert problem.wire.upload(block).bytes == payload.nbytes
        assert problem.wire.upload(block).floats == factor * floats
        assert sum(problem.wire.upload(block).by_block) == factor * floats


def test_a_coordinate_that_no_client_uploads_keeps_its_value(lab: Any) -> None:
    """All clients of a block are dropped: x, v and c of the block do not change."""
    changes = {"rounds": 1, "cohort": {"on_client_error": "drop"}, **algorithm("fedbcgd+")}
    played = lab.play(changes)
    members = {p.client: p.block for p in played.rounds[0].participants}
    from raybcgd.client.shards import Shards

    original = Shards.shard

    def fails(self: Shards, client: int, orders: Any) -> Any:
        if members[client] == 0:
            raise RuntimeError("lost")
        return original(self, client, orders)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shards, "shard", fails)
        without = lab.play(changes)
    first, rest = without.problem.layout.blocks[0].slice, without.problem.layout.blocks[1].slice
    assert torch.equal(without.x[first], without.start[first])
    assert not bool(without.server.c[first].any())
    assert torch.equal(without.x[rest], played.x[rest])
