"""Convergence on a strongly convex problem, measured against its optimum.

Binary logistic regression on the digits (label < 5 or not, L2 1e-2, rows of norm 1) in float64; 20 clients hold the
samples sorted by label; N = 5 equal cuts and 5 shared coordinates; eta = 1, T = 10.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from torch import Tensor

from raybcgd.data.dataset import Dataset
from raybcgd.data.partition import Partition

CLIENTS, L2 = 20, 1e-2


@cache
def problem() -> tuple[Dataset, Partition]:
    bunch = load_digits()
    rows = bunch.data / np.linalg.norm(bunch.data, axis=1, keepdims=True)
    labels = (bunch.target < 5).astype(np.int64)
    offsets = np.linspace(0, len(rows), CLIENTS + 1).astype(np.int64)
    owners = Partition(np.argsort(bunch.target, kind="stable").astype(np.int64), offsets)
    return Dataset.from_tensors(rows, labels, rows[:100], labels[:100]), owners


def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean of the clients' losses, and its gradient."""
    dataset, owners = problem()
    weight = np.concatenate([np.full(size, 1 / (CLIENTS * size)) for size in owners.sizes])
    rows = dataset.train.inputs[owners.indices]
    signs = 2 * dataset.train.targets[owners.indices] - 1
    margins = signs * (rows @ w)
    value = weight @ np.logaddexp(0, -margins) + L2 / 2 * w @ w
    return value, -rows.T @ (weight * signs / (1 + np.exp(margins))) + L2 * w


@cache
def optimum() -> float:
    found = minimize(
        loss, np.zeros(64), jac=True, method="L-BFGS-B", options={"ftol": 0, "gtol": 1e-14, "maxiter": 9999}
    )
    w = found.x
    for _ in range(3):  # L-BFGS does not reach float64 accuracy; finish with Newton steps
        step = np.linalg.solve(hessian(w), loss(w)[1])
        w = w - step
    assert np.abs(loss(w)[1]).max() < 1e-13
    return loss(w)[0]


def hessian(w: np.ndarray) -> np.ndarray:
    numeric = np.stack([(loss(w + h)[1] - loss(w - h)[1]) / 2e-5 for h in 1e-5 * np.eye(len(w))])
    return (numeric + numeric.T) / 2


def gap(x: Tensor) -> float:
    return loss(x.numpy())[0] - optimum()


FULL = {"cohort": {"clients_per_round": 20}, "local": {"batch_size": "full"}}
HALF = {"cohort": {"clients_per_round": 10}, "local": {"batch_size": 10}}


@pytest.fixture
def play(lab: Any) -> Callable[..., Any]:
    def run(setting: dict[str, Any], rounds: int, name: str, until: float = -1.0, **hyper: Any) -> Any:
        dataset, owners = problem()
        return lab.play(
            {
                "rounds": rounds,
                "data": {"partition": {"kind": "iid", "rho": None, "clients": CLIENTS, "samples_per_client": None}},
                "model": {
                    "name": "logistic",
                    "dtype": "float64",
                    "loss": "binary_cross_entropy",
                    "options": {"bias": False, "hidden": None},
                },
                "blocks": {"division": "equal", "count": 5, "shared": 5},
                "algorithm": {"name": name, "lr": 1.0, "lr_decay": 1.0, "weight_decay": L2, **hyper},
                "local": {"steps": 10, "epochs": None, "stack": 20, **setting["local"]},
                "cohort": setting["cohort"],
                "wire": setting.get("wire", {}),
            },
            dataset=dataset,
            owners=owners,
            stop=lambda x: gap(x) < until,
        )

    return run


def test_the_blocks_are_five_equal_cuts_and_a_shared_tail(play: Callable[..., Any]) -> None:
    layout = play(FULL, 1, "fedavg").problem.layout
    assert [block.size for block in layout.all_blocks] == [11, 12, 12, 12, 12, 5]


def test_fedbcgd_plus_reaches_the_optimum_with_half_the_clients_and_minibatches(play: Callable[..., Any]) -> None:
    played = play(HALF, 300, "fedbcgd+", until=1e-8, momentum=0.5)
    assert gap(played.x) < 1e-8
    ci = played.kept("algorithm.c")
    np.testing.assert_allclose(played.server.c.numpy(), ci.mean(axis=0), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "hyper", "level"),
    [
        ("fedavg", {}, 1e-3),
        ("fedbcgd", {"momentum": 0.5}, 1e-3),
        ("fedbcgd+", {"momentum": 0.5, "commit": "all"}, 1e-2),
    ],
)
@pytest.mark.parametrize("rounds", [50, pytest.param(300, marks=pytest.mark.slow)])
def test_inexact_methods_do_not_reach_the_optimum(
    play: Callable[..., Any], name: str, hyper: dict[str, Any], level: float, rounds: int
) -> None:
    assert min(gap(x) for x in play(HALF, rounds, name, **hyper).xs) > level


def test_derived_control_variates_give_the_trajectory_of_sent_ones(play: Callable[..., Any]) -> None:
    derived, sent = (play(HALF, 10, "fedbcgd+", momentum=0.5, control_upload=how) for how in ("derived", "sent"))
    assert all(torch.equal(a, b) for a, b in zip(derived.xs, sent.xs, strict=True))
    assert [2 * upload.floats for upload in derived.uploads] == [upload.floats for upload in sent.uploads]
    assert [2 * upload.bytes for upload in derived.uploads] == [upload.bytes for upload in sent.uploads]


@pytest.mark.parametrize(
    ("hyper", "level"),
    [
        ({"name": "scaffold"}, 1e-8),
        ({"name": "fedbcgd+", "momentum": 0.5}, 1e-8),
        ({"name": "fedbcgd+", "momentum": 0.0, "control": "anchor", "control_upload": "sent"}, 1e-6),
    ],
)
def test_exact_methods_reach_the_optimum_with_all_clients_and_exact_gradients(
    play: Callable[..., Any], hyper: dict[str, Any], level: float
) -> None:
    assert gap(play(FULL, 150, until=level, **hyper).x) < level


def test_scaffold_with_quantised_uploads_reaches_the_optimum(play: Callable[..., Any]) -> None:
    """QSGD's noise is unbiased and shrinks with the upload, so SCAFFOLD with 8 bits per value converges linearly."""
    quantised = {**FULL, "wire": {"codec": "qsgd", "levels": 127}}
    assert gap(play(quantised, 100, "scaffold", until=1e-8).x) < 1e-8


def test_scaffold_with_topk_reaches_the_optimum_only_without_error_feedback(play: Callable[..., Any]) -> None:
    """c_i already corrects for the values that were not sent; error feedback would correct a second time."""
    wire = {"codec": "topk", "fraction": 0.25}
    without = play({**FULL, "wire": {**wire, "error_feedback": False}}, 60, "scaffold", until=1e-4)
    assert gap(without.x) < 1e-4
    assert gap(play({**FULL, "wire": wire}, 60, "scaffold").x) > 1e-3


def test_fedavg_converges_to_a_biased_point(play: Callable[..., Any]) -> None:
    xs = play(FULL, 60, "fedavg").xs
    assert gap(xs[-1]) == pytest.approx(1.2e-2, rel=0.05)
    assert abs(gap(xs[-1]) - gap(xs[-2])) < 1e-5


@pytest.mark.parametrize("control", [{}, {"control": "anchor", "control_upload": "sent"}])
def test_the_papers_commit_rule_does_not_converge(play: Callable[..., Any], control: dict[str, str]) -> None:
    xs = play(FULL, 15, "fedbcgd+", momentum=0.5, commit="all", **control).xs
    assert min(gap(x) for x in xs) > 1e-2
