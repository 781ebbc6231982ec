"""Block-cyclic data for MM-PSGD and MC-PSGD: phases with different labels take turns.

The papers call a phase a block; here, a block is a part of the model.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from raybcgd.data.partition import Ints, Partition, sizes_from_weights
from raybcgd.data.settings import PhasesConfig
from raybcgd.errors import ConfigError
from raybcgd.randomness import stream


@dataclass(frozen=True)
class Phase:
    """The labels of a phase, the partition of its training samples, and its test samples."""

    labels: tuple[int, ...]
    train: Partition
    test: Ints


def phases(
    train_targets: Ints, test_targets: Ints, classes: int, config: PhasesConfig, clients: int, seed: int
) -> tuple[Phase, ...]:
    """Split training and test samples by phase, and the training samples of each phase among all clients.

    Each sample belongs to at most one phase. Samples of a shared label are split evenly between its phases, in the
    training and the test data alike, so that a phase is evaluated on the mixture that it is trained on.
    """
    labels = phase_labels(classes, config)
    train = _phase_of_samples(train_targets, labels, classes, stream(seed, "phases", "train"))
    test = _phase_of_samples(test_targets, labels, classes, stream(seed, "phases", "test"))
    found = []
    for m in range(config.count):
        samples, test_samples = np.flatnonzero(train == m), np.flatnonzero(test == m)
        _check_phase(f"phase {m} (labels {labels[m]})", len(samples), len(test_samples), clients)
        owners = _deal(train_targets, samples, clients, config, stream(seed, "phases", "clients", m))
        found.append(Phase(labels[m], Partition.from_owners(owners, clients), test_samples))
    if not config.shuffled:
        return tuple(found)
    rng, mixed = stream(seed, "phases", "clients", "shuffled"), config.model_copy(update={"deal": "random"})
    owners = _deal(train_targets, np.flatnonzero(train >= 0), clients, mixed, rng)
    return tuple(replace(phase, train=Partition.from_owners(owners, clients)) for phase in found)


def phase_labels(classes: int, config: PhasesConfig) -> list[tuple[int, ...]]:
    """Return the labels of each phase: those of the config, or consecutive ones and the next `shared_labels`."""
    if config.labels is not None:
        for m, own in enumerate(config.labels):
            if not own or len(set(own)) < len(own) or not all(0 <= label < classes for label in own):
                raise ConfigError(
                    f"data.phases.labels of phase {m} are {list(own)}; list different labels from 0 to {classes - 1}"
                )
        return list(config.labels)
    starts = [m * classes // config.count for m in range(config.count + 1)]
    limit = classes - max(b - a for a, b in pairwise(starts))
    if config.shared_labels > limit:
        raise ConfigError(
            f"data.phases.shared_labels = {config.shared_labels} gives a phase more than the {classes} labels; lower "
            f"it to {limit} or less"
        )
    if config.count > classes and config.shared_labels == 0:
        raise ConfigError(
            f"data.phases.count = {config.count} is more than the {classes} labels; lower it to {classes} or less, or "
            "set data.phases.shared_labels"
        )
    return [
        tuple(label % classes for label in range(start, end + config.shared_labels)) for start, end in pairwise(starts)
    ]


def _phase_of_samples(targets: Ints, labels: list[tuple[int, ...]], classes: int, rng: np.random.Generator) -> Ints:
    """Return the phase of each sample, -1 for none. The samples of a shared label alternate between its phases."""
    phase = np.full(len(targets), -1, dtype=np.int64)
    for label in range(classes):
        owners = np.array([m for m, own in enumerate(labels) if label in own], dtype=np.int64)
        samples = rng.permutation(np.flatnonzero(targets == label))
        if len(owners):
            phase[samples] = owners[np.arange(len(samples)) % len(owners)]
    return phase


def _deal(targets: Ints, samples: Ints, clients: int, config: PhasesConfig, rng: np.random.Generator) -> Ints:
    """Deal some samples to the clients. Return the owner of each sample of the data set, -1 for none."""
    sizes = _client_sizes(len(samples), clients, config.size_deviation, rng)
    order = rng.permutation(samples)
    if config.deal == "sequence":
        order = order[np.argsort(targets[order], kind="stable")]
    owners = np.full(len(targets), -1, dtype=np.int64)
    owners[order] = np.repeat(np.arange(clients), sizes)
    return owners


def _check_phase(name: str, train: int, test: int, clients: int) -> None:
    if test == 0:
        raise ConfigError(f"data.phases: {name} has no test samples; lower data.phases.count")
    if clients > train:
        raise ConfigError(
            f"data.partition.clients = {clients} is more than the {train} training samples of {name}; "
            f"lower it to {train} or less, or lower data.phases.count"
        )


def _client_sizes(samples: int, clients: int, deviation: float, rng: np.random.Generator) -> Ints:
    weights = np.maximum(1 + deviation * rng.standard_normal(clients), 0.0)
    if weights.sum() == 0:  # possible if there are few clients and the deviation is large
        weights[:] = 1.0
    return sizes_from_weights(weights, samples)
