"""Block-cyclic data: phases of labels, each split among all clients."""

import numpy as np
import pytest

from raybcgd.data.phases import phase_labels, phases
from raybcgd.data.settings import PhasesConfig
from raybcgd.errors import ConfigError

TRAIN, TEST = np.tile(np.arange(10), 1200), np.tile(np.arange(10), 100)


@pytest.mark.parametrize("shared", [0, 1, 2])
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
        (PhasesConfig(count=5, shared_labels=3), 10, r"data\.phases\.shared_labels = 3 .* lower it to 2"),
        (PhasesConfig(count=1, shared_labels=1), 10, r"data\.phases\.shared_labels = 1 .* lower it to 0"),
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
