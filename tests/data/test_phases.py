"""Block-cyclic data: phases of labels, each split among all clients."""

from itertools import pairwise

import numpy as np
import pytest
from pydantic import ValidationError

from raybcgd.data.phases import phase_labels, phases
from raybcgd.data.settings import PhasesConfig
from raybcgd.errors import ConfigError

TRAIN, TEST = np.tile(np.arange(10), 1200), np.tile(np.arange(10), 100)


@pytest.mark.parametrize("shared", [0, 1, 2, 5, 8])
def test_every_sample_belongs_to_one_phase(shared: int) -> None:
    config = PhasesConfig(count=5, shared_labels=shared)
    found = phases(TRAIN, TEST, 10, config, clients=100, seed=0)
    train = np.concatenate([phase.train.indices for phase in found])
    test = np.concatenate([phase.test for phase in found])
    assert np.array_equal(np.sort(train), np.arange(len(TRAIN)))
    assert np.array_equal(np.sort(test), np.arange(len(TEST)))
    for phase in found:
        assert len(phase.labels) == 2 + shared
        assert set(TRAIN[phase.train.indices]) == set(phase.labels) == set(TEST[phase.test])
        assert len(phase.train) == 100
        assert phase.train.sizes.min() >= 1


def test_neighbouring_phases_share_labels_in_a_cycle() -> None:
    assert phase_labels(6, PhasesConfig(count=3, shared_labels=1)) == [(0, 1, 2), (2, 3, 4), (4, 5, 0)]


def test_labels_overlap_freely() -> None:
    assert phase_labels(4, PhasesConfig(count=4, shared_labels=2)) == [(0, 1, 2), (1, 2, 3), (2, 3, 0), (3, 0, 1)]
    assert phase_labels(2, PhasesConfig(count=4, shared_labels=1)) == [(0,), (0, 1), (1,), (1, 0)]
    chosen = ((0, 1, 2), (2, 7), (0, 2, 7))
    found = phases(TRAIN, TEST, 10, PhasesConfig(count=3, labels=chosen), clients=10, seed=0)
    for phase, labels in zip(found, chosen, strict=True):
        assert set(TRAIN[phase.train.indices]) == set(labels) == set(TEST[phase.test])
    used = np.concatenate([phase.train.indices for phase in found])
    assert np.array_equal(np.sort(used), np.flatnonzero(np.isin(TRAIN, [0, 1, 2, 7])))
    with pytest.raises(ValidationError, match="labels has 3 phases, but count = 5"):
        PhasesConfig(labels=chosen)


def test_the_samples_of_a_phase_are_dealt_in_the_order_of_their_labels() -> None:
    """The paper: local training sets are fetched from the block in sequence."""
    for phase in phases(TRAIN, TEST, 10, PhasesConfig(count=2), clients=50, seed=0):
        labels = [TRAIN[phase.train.client(i)] for i in range(50)]
        assert all(a.max() <= b.min() for a, b in pairwise(labels))
        assert np.mean([len(set(own)) for own in labels]) < 1.2
    mixed = phases(TRAIN, TEST, 10, PhasesConfig(count=2, deal="random"), clients=50, seed=0)[0].train
    assert np.mean([len(set(TRAIN[mixed.client(i)])) for i in range(50)]) == 5


def test_the_shuffled_baseline_trains_on_all_labels_and_is_evaluated_per_phase() -> None:
    cyclic, shuffled = (phases(TRAIN, TEST, 10, PhasesConfig(shuffled=flag), 100, 0) for flag in (False, True))
    assert all(np.array_equal(a.test, b.test) for a, b in zip(cyclic, shuffled, strict=True))
    first = shuffled[0].train
    assert np.array_equal(np.sort(first.indices), np.arange(len(TRAIN)))
    assert all(np.array_equal(phase.train.indices, first.indices) for phase in shuffled)
    assert min(len(set(TRAIN[first.client(i)])) for i in range(100)) == 10
    assert first.sizes.std() == pytest.approx(24, rel=0.3)


def test_a_shared_label_is_as_frequent_in_training_as_in_test_data() -> None:
    phase = phases(TRAIN, TEST, 10, PhasesConfig(count=5, shared_labels=1), 50, 0)[0]
    train, test = (np.bincount(t, minlength=10) / len(t) for t in (TRAIN[phase.train.indices], TEST[phase.test]))
    assert np.allclose(train, test, atol=0.02)


def test_client_sizes_are_normally_distributed() -> None:
    big = np.tile(np.arange(10), 50_000)
    sizes = phases(big, TEST, 10, PhasesConfig(count=2, size_deviation=0.2), 1000, 0)[0].train.sizes
    assert sizes.mean() == 250
    assert sizes.std() == pytest.approx(50, rel=0.1)
    assert (np.abs(sizes - 250) < 50).mean() == pytest.approx(0.683, abs=0.05)


def test_no_client_is_empty_if_sizes_vary_widely() -> None:
    for seed in range(20):
        for phase in phases(TRAIN, TEST, 10, PhasesConfig(count=5, size_deviation=10), 3, seed):
            assert phase.train.sizes.min() >= 1


def test_phases_depend_on_the_seed() -> None:
    one, same, other = (phases(TRAIN, TEST, 10, PhasesConfig(), 100, seed)[2].train.indices for seed in (4, 4, 5))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("config", "clients", "message"),
    [
        (PhasesConfig(count=11), 10, r"data\.phases\.count = 11 .* lower it to 10"),
        (PhasesConfig(count=5, shared_labels=9), 10, r"data\.phases\.shared_labels = 9 .* lower it to 8"),
        (PhasesConfig(count=1, shared_labels=1), 10, r"data\.phases\.shared_labels = 1 .* lower it to 0"),
        (PhasesConfig(count=2, labels=((0, 1), (1, 10))), 10, r"labels of phase 1 are \[1, 10\]; .* from 0 to 9"),
        (PhasesConfig(count=2, labels=((0, 0), (1,))), 10, r"labels of phase 0 are \[0, 0\]; list different"),
        (
            PhasesConfig(count=5),
            2401,
            r"data\.partition\.clients = 2401 is more than the 2400 training samples of phase 0",
        ),
    ],
)
def test_impossible_phases_are_refused(config: PhasesConfig, clients: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        phases(TRAIN, TEST, 10, config, clients, 0)


def test_a_phase_without_test_data_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"phase 4 .* no test samples"):
        phases(TRAIN, TEST[TEST < 8], 10, PhasesConfig(count=5), 10, 0)
