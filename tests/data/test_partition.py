"""Partitions: valid for every valid input, fast, and with the requested distribution."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raybcgd.data.inspect import distance_from_iid, label_counts
from raybcgd.data.partition import (
    IID,
    Dirichlet,
    DirichletFree,
    LogNormal,
    Partition,
    Partitioner,
    Shards,
    partition,
    sizes_from_weights,
)
from raybcgd.data.settings import PARTITIONS, DataConfig
from raybcgd.errors import ConfigError

KINDS = tuple(kind for kind in PARTITIONS if kind != "natural")  # that one is not drawn, but given by the data


def make(kind: str, **settings: Any) -> Partitioner:
    """Make a partition with only the settings that its kind has."""
    return PARTITIONS.section(PARTITIONS.keep_valid(settings, kind), kind)  # type: ignore[no-any-return]


def labels(n: int, classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, n)


@st.composite
def cases(draw: Any) -> tuple[np.ndarray, int, Partitioner]:
    """Draw labels, possibly with empty classes, and a config that is valid for them."""
    classes = draw(st.integers(1, 12))
    targets = np.array(draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=120)), dtype=np.int64)
    clients = draw(st.integers(1, len(targets)))
    kind = draw(st.sampled_from(KINDS))
    settings = {
        "clients": st.just(clients),
        "rho": st.sampled_from([1e-9, 0.01, 0.3, 1.0, 100.0, 1e9]),
        "shards_per_client": st.integers(1, len(targets) // clients),
        "sigma": st.sampled_from([0.0, 0.5, 3.0, 20.0]),
        "samples_per_client": st.none() | st.integers(1, 20),
    }
    return targets, classes, make(kind, **{name: draw(values) for name, values in settings.items()})


@settings(max_examples=300, deadline=2000)
@given(case=cases(), seed=st.integers(0, 2**32))
def test_every_valid_input_gives_a_valid_partition(case: tuple[np.ndarray, int, Partitioner], seed: int) -> None:
    targets, classes, config = case
    parts = partition(targets, classes, config, seed)
    assert len(parts) == config.clients
    assert parts.sizes.min() >= 1
    assert len(np.unique(parts.indices)) == len(parts.indices), "a sample belongs to two clients"
    assert parts.indices.min() >= 0
    assert parts.indices.max() < len(targets)
    assert np.array_equal(np.concatenate([parts.client(i) for i in range(len(parts))]), parts.indices)
    if config.samples_per_client is not None:
        assert parts.sizes.max() <= config.samples_per_client
    elif not isinstance(config, Dirichlet):
        assert len(parts.indices) == len(targets), "these kinds use every sample"
    if isinstance(config, Dirichlet):
        assert set(parts.sizes) == {min(len(targets) // config.clients, config.samples_per_client or len(targets))}
    if isinstance(config, IID):
        assert np.ptp(parts.sizes) <= 1
    again = partition(targets, classes, config, seed)
    assert np.array_equal(parts.indices, again.indices)
    assert np.array_equal(parts.offsets, again.offsets)


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_another_partition(kind: str) -> None:
    targets = labels(600, 10)
    config = make(kind, clients=10)
    one, two = (partition(targets, 10, config, seed) for seed in (0, 1))
    assert not np.array_equal(one.indices, two.indices)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rho", "clients", "samples", "classes"),
    [(0.01, 500, 500 * 60, 10), (0.1, 1000, 60_000, 10), (0.3, 1000, 100_000, 200), (0.05, 100_000, 600_000, 10)],
)
def test_large_partitions_take_seconds(kind: str, rho: float, clients: int, samples: int, classes: int) -> None:
    targets = labels(samples, classes)
    started = time.process_time()
    parts = partition(targets, classes, make(kind, rho=rho, clients=clients), 0)
    assert time.process_time() - started < 5
    assert parts.sizes.min() >= 1
    assert len(np.unique(parts.indices)) == len(parts.indices)


@pytest.mark.parametrize("kind", KINDS)
def test_more_clients_than_samples_are_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.partition\.clients = 11 is more than the 10 .* lower it to 10"):
        partition(labels(10, 2), 2, make(kind, clients=11), 0)


def test_too_many_shards_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"shards_per_client = 4 needs 20 shards, .* lower it to at most 2"):
        partition(labels(10, 2), 2, Shards(clients=5, shards_per_client=4), 0)


def test_a_smaller_rho_makes_clients_more_different() -> None:
    targets = np.repeat(np.arange(10), 600)
    distances = [
        distance_from_iid(label_counts(targets, 10, partition(targets, 10, Dirichlet(rho=rho, clients=50), 0)))
        for rho in (0.01, 0.1, 0.6, 10.0, 1e6)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.85
    assert distances[-1] < 0.15


def test_label_counts_have_the_moments_of_the_distribution() -> None:
    """Compare mean and variance: while no label runs out, a client's label counts are Dirichlet-multinomial."""
    rho, classes, size = 0.5, 5, 40
    targets = np.repeat(np.arange(classes), 50_000)
    config = Dirichlet(rho=rho, clients=2000, samples_per_client=size)
    counts = label_counts(targets, classes, partition(targets, classes, config, 3))
    total = rho * classes
    variance = size * (1 / classes) * (1 - 1 / classes) * (size + total) / (1 + total)
    assert np.allclose(counts.mean(axis=0), size / classes, rtol=0.08)
    assert np.allclose(counts.var(axis=0), variance, rtol=0.12)


def test_shards_give_a_client_few_labels() -> None:
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    counts = label_counts(targets, 10, partition(targets, 10, Shards(clients=50), 0))
    assert (counts > 0).sum(axis=1).max() <= 2


def test_lognormal_sizes_follow_sigma() -> None:
    targets = labels(200_000, 10)
    parts = partition(targets, 10, LogNormal(clients=1000, sigma=0.7), 0)
    assert np.std(np.log(parts.sizes)) == pytest.approx(0.7, rel=0.1)
    assert distance_from_iid(label_counts(targets, 10, parts)) < 0.2


def test_free_sizes_differ() -> None:
    targets = labels(6000, 10)
    sizes = partition(targets, 10, DirichletFree(clients=20, rho=0.3), 0).sizes
    assert sizes.max() > 2 * sizes.min()


def test_samples_per_client_limits_every_client() -> None:
    targets = labels(60_000, 10)
    capped = partition(targets, 10, Dirichlet(clients=100, samples_per_client=100), 0)
    assert set(capped.sizes) == {100}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50).filter(lambda w: sum(w) > 0), st.integers(0, 1000))
def test_sizes_from_weights_have_the_right_sum(weights: list[float], spare: int) -> None:
    sizes = sizes_from_weights(np.array(weights), len(weights) + spare)
    assert sizes.sum() == len(weights) + spare
    assert sizes.min() >= 1


def test_from_owners_leaves_out_samples_without_an_owner() -> None:
    parts = Partition.from_owners(np.array([1, -1, 0, 1, -1]), 3)
    assert [parts.client(i).tolist() for i in range(3)] == [[2], [0, 3], []]


@pytest.mark.parametrize("wrong", [{"rho": 0}, {"rho": -1}, {"clients": 0}, {"kind": "random"}, {"rhoo": 1}])
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DataConfig.model_validate({"partition": wrong})
