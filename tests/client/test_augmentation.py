"""Augmentation in a client host: the images that a client's model sees in each step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raybcgd import ConfigError, Dataset, run
from raybcgd.client.batches import schedule
from raybcgd.client.host import ClientHost
from raybcgd.config import Config
from raybcgd.data.augment import draw
from raybcgd.data.normalise import normalise
from raybcgd.messages import ClientTask, RoundOrders
from raybcgd.model.flat import FlatModel
from raybcgd.problem import Data, Problem, prepare
from raybcgd.randomness import stream
from tests.conftest import small
from tests.data.test_transforms import torchvision_augment

pytestmark = pytest.mark.usefixtures("recording")

BOTH = ["crop", "flip"]


class Watching(nn.Module):
    """A linear model that records every training batch."""

    seen: list[Tensor] = []  # noqa: RUF012  # shared by the class, so that the host's copy of the module fills it too

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 8 * 10, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            Watching.seen.append(x.clone())
        outputs: Tensor = self.head(x.flatten(1))
        return outputs


@pytest.fixture(scope="module")
def images() -> Dataset:
    """Colour images of random noise, so that no two crops are equal."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (120, 3, 8, 10), dtype=np.uint8), rng.integers(0, 4, 120)
    return Dataset.from_tensors(images, labels, images[:20], labels[:20], classes=4)


def config(augment: list[str], algorithm: str, **local: Any) -> Config:
    return small(
        data={"augment": augment, "partition": {"kind": "lognormal", "sigma": 0.3, "clients": 6}},
        blocks={"count": 1, "shared": "none"},
        algorithm={"name": algorithm, "lr": 0.05},
        local={"epochs": 3, "batch_size": 8, "stack": 0, **local},
    )


def shown(settings: Config, images: Dataset, out: Path, client: int = 2, round_index: int = 5) -> Any:
    """Train one client in a host. Return the problem, the data, and the batches that its model saw, in order."""
    problem, data = prepare(settings, Watching(), images)
    Watching.seen.clear()
    train(problem, data, out, [client], round_index)
    return problem, data, list(Watching.seen)


def train(problem: Problem, data: Data, out: Path, clients: list[int], round_index: int = 5) -> list[np.ndarray]:
    host = ClientHost(problem, data, str(out), torch.device("cpu"))
    flat = FlatModel(problem.module(), problem.layout, problem.dtype, torch.device("cpu"))
    x = flat.vector.numpy()
    down = {name: x if name == "x" else np.zeros_like(x) for name in problem.config.algorithm.Down._fields}
    outcomes = host.train(
        [ClientTask(client, 0) for client in clients],
        down,
        RoundOrders(round_index, problem.algorithm.lr_at(round_index)),
    ).outcomes
    assert [outcome.error for outcome in outcomes] == [None] * len(clients)
    return [outcome.payload for outcome in outcomes if outcome.payload is not None]


@pytest.mark.parametrize("augment", [["crop"], ["flip"], BOTH])
def test_every_epoch_draws_its_own_augmentation_which_matches_torchvision(
    images: Dataset, out: Path, augment: list[str]
) -> None:
    _, data, seen = shown(config(augment, "fedavg"), images, out)
    rows = data.partitions[0].client(2)
    plan = schedule(len(rows), config(augment, "fedavg").local, False, stream(0, "batches", 2, 5))
    rng = stream(0, "augment", 2, 5)
    raw = torch.from_numpy(images.train.inputs[rows])
    expected = []
    for epoch in range(3):
        theirs = normalise(torchvision_augment(raw, draw(rng, len(rows), tuple(augment))), images)
        expected += [theirs[plan.members()[b]] for b in range(epoch * plan.per_epoch, (epoch + 1) * plan.per_epoch)]
    assert len(seen) == len(expected) > 3
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(seen, expected, strict=True))


def sorted_images(batches: list[Tensor]) -> list[bytes]:
    return sorted(image.contiguous().numpy().tobytes() for batch in batches for image in batch)


def test_epochs_differ_only_without_fixed_batches(images: Dataset, out: Path) -> None:
    _, _, seen = shown(config(BOTH, "fedavg"), images, out)
    per_epoch = len(seen) // 3
    assert sorted_images(seen[:per_epoch]) != sorted_images(seen[per_epoch : 2 * per_epoch])
    _, _, seen = shown(config(BOTH, "fedbcgd+"), images, out)
    passes = [sorted_images(seen[start : start + per_epoch]) for start in range(0, len(seen), per_epoch)]
    assert len(passes) == 1 + 3, "one pass at x, and one per epoch"
    assert all(one == passes[0] for one in passes)


def test_both_gradients_of_a_variance_reduced_step_see_the_same_images(images: Dataset, out: Path) -> None:
    _, _, seen = shown(config(BOTH, "fedbcgd+", anchor_memory_mb=0), images, out)
    per_epoch = len(seen) // 7
    steps = seen[per_epoch:]  # after the pass for the full gradient, every step computes g(y) and then g(x)
    assert len(steps) == 2 * 3 * per_epoch
    assert all(torch.equal(at_y, at_x) for at_y, at_x in zip(steps[::2], steps[1::2], strict=True))


def test_images_depend_only_on_seed_client_and_round(images: Dataset, out: Path) -> None:
    def look(client: int = 2, round_index: int = 5, seed: int = 0) -> list[bytes]:
        settings = config(BOTH, "fedavg").model_copy(update={"seed": seed})
        return sorted_images(shown(settings, images, out, client, round_index)[2])

    assert look() == look()
    assert len({tuple(look()), tuple(look(client=3)), tuple(look(round_index=6)), tuple(look(seed=1))}) == 4


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbcgd+"])
def test_stacked_clients_see_the_same_images_as_single_clients(images: Dataset, out: Path, algorithm: str) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(240, 12), nn.Tanh(), nn.Linear(12, 4))
    uploads = []
    for stack in (0, 4):
        problem, data = prepare(config(BOTH, algorithm, stack=stack), module, images)
        assert len(set(data.partitions[0].sizes // 8)) > 1, "clients should be in different epochs at the same step"
        uploads.append(train(problem, data, out / str(stack), list(range(6))))
    for alone, stacked in zip(*uploads, strict=True):
        np.testing.assert_allclose(alone.view(np.float32), stacked.view(np.float32), atol=2e-6)
    plain = train(*prepare(config([], algorithm), module, images), out / "plain", list(range(6)))
    assert not np.allclose(plain[0].view(np.float32), uploads[0][0].view(np.float32), atol=1e-4)


def test_augmentation_trains_end_to_end_on_the_digits(out: Path) -> None:
    settings = small(data={"augment": ["crop"]}, rounds=1)
    assert run(settings, out=out).summary["sha256"] == run(settings, out=out.with_name("again")).summary["sha256"]


def test_only_images_can_be_augmented() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    table = Dataset.from_tensors(rows, np.arange(40) % 2, rows, np.arange(40) % 2)
    with pytest.raises(ConfigError, match=r"data\.augment needs images"):
        prepare(small(data={"augment": ["flip"], "partition": {"clients": 8}}), dataset=table)
