"""Block-cyclic data (MM/MC-PSGD): the labels come in phases, one after the other, over and over.

The papers call a phase a block; here a block is a part of the model.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from raybcgd.data.partition import Ints, Partition, sizes_from_weights, split_at_random
from raybcgd.data.settings import PhasesConfig
from raybcgd.errors import ConfigError
from raybcgd.randomness import stream


@dataclass(frozen=True)
class Phase:
    """One phase: its labels, who holds which of its train samples, and its test samples."""

    labels: tuple[int, ...]
    train: Partition
    test: Ints


def phases(
    train_targets: Ints, test_targets: Ints, classes: int, config: PhasesConfig, clients: int, seed: int
) -> tuple[Phase, ...]:
    """Split train and test samples by phase, and those of each phase among all clients.

    A sample belongs to one phase; where two share a label, its samples are split evenly between them, in train and
    test alike, so that a phase is judged on the mixture it is trained on. Within a phase labels are mixed (iid).
    """
    if config.count > classes:
        raise ConfigError(f"data.phases.count is {config.count} but there are {classes} labels; lower it to {classes}")
    labels = phase_labels(classes, config)
    train_phase = _phase_of_samples(train_targets, labels, classes, stream(seed, "phases", "train"))
    test_phase = _phase_of_samples(test_targets, labels, classes, stream(seed, "phases", "test"))
    return tuple(
        _phase(m, labels[m], train_phase, test_phase, config, clients, stream(seed, "phases", "clients", m))
        for m in range(config.count)
    )


def phase_labels(classes: int, config: PhasesConfig) -> list[tuple[int, ...]]:
    """The labels of each phase: runs of nearly equal length, each followed by the ones that it shares."""
    starts = [m * classes // config.count for m in range(config.count + 1)]
    smallest = min(b - a for a, b in pairwise(starts))
    most = smallest if config.count > 1 else 0
    if config.shared_labels > most:
        raise ConfigError(
            f"data.phases.shared_labels is {config.shared_labels} but a phase has as few as {smallest} labels of its "
            f"own to share with its neighbour; lower it to {most} or less"
        )
    return [
        tuple(label % classes for label in range(start, end + config.shared_labels)) for start, end in pairwise(starts)
    ]


def _phase_of_samples(targets: Ints, labels: list[tuple[int, ...]], classes: int, rng: np.random.Generator) -> Ints:
    """The phase of every sample; the phases that have its label take turns."""
    phase = np.empty(len(targets), dtype=np.int64)
    for label in range(classes):
        owners = np.array([m for m, own in enumerate(labels) if label in own], dtype=np.int64)
        samples = rng.permutation(np.flatnonzero(targets == label))
        phase[samples] = owners[np.arange(len(samples)) % len(owners)]
    return phase


def _phase(
    m: int,
    labels: tuple[int, ...],
    train_phase: Ints,
    test_phase: Ints,
    config: PhasesConfig,
    clients: int,
    rng: np.random.Generator,
) -> Phase:
    samples, test = np.flatnonzero(train_phase == m), np.flatnonzero(test_phase == m)
    if len(test) == 0:
        raise ConfigError(f"data.phases: phase {m} (labels {labels}) has no test samples; lower data.phases.count")
    if clients > len(samples):
        raise ConfigError(
            f"data.partition.clients is {clients} but phase {m} (labels {labels}) has {len(samples)} train samples; "
            f"lower it to {len(samples)} or less, or lower data.phases.count"
        )
    weights = np.maximum(1 + config.size_deviation * rng.standard_normal(clients), 0.0)
    if weights.sum() == 0:  # every draw below zero: possible with few clients and a large deviation
        weights[:] = 1.0
    sizes = sizes_from_weights(weights, len(samples))
    return Phase(labels, Partition.from_owners(split_at_random(sizes, samples, len(train_phase), rng), clients), test)
