"""Which client holds which training samples."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from raybcgd.errors import ConfigError
from raybcgd.randomness import stream
from raybcgd.section import Section

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

Kind = Literal["iid", "dirichlet", "dirichlet_free", "shards", "lognormal"]


class PartitionConfig(Section):
    """How the training samples are dealt to the clients."""

    kind: Kind = "dirichlet"
    """iid: equal sizes, mixed labels; dirichlet: equal sizes, each client with label proportions of its own;
    dirichlet_free: each label spread over the clients by proportions of its own, sizes as they fall; shards: equal
    runs of the samples sorted by label; lognormal: mixed labels, log-normal sizes."""
    clients: int = Field(50, ge=1)
    """M, clients in all."""
    rho: float = Field(0.6, ge=1e-9, le=1e9)
    """Dirichlet concentration: small is one label a client, large is iid."""
    shards_per_client: int = Field(2, ge=1)
    """With kind = "shards"."""
    sigma: float = Field(1.0, ge=0, le=20)
    """Deviation of the logarithm of a client's size, with kind = "lognormal"."""
    samples_per_client: int | None = Field(None, ge=1)
    """The most samples a client may hold; the others are left out. None: no limit."""


@dataclass(frozen=True)
class Partition:
    """Every client's sample indices, one after another; client i's run from offsets[i] to offsets[i + 1]."""

    indices: Ints
    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def client(self, i: int) -> Ints:
        """The sample indices of client i: a view."""
        return self.indices[self.offsets[i] : self.offsets[i + 1]]

    @property
    def sizes(self) -> Ints:
        """How many samples each client holds."""
        return np.diff(self.offsets)

    @classmethod
    def from_owners(cls, owners: Ints, clients: int) -> "Partition":
        """From the owner of each sample, -1 for nobody. A client's indices come in ascending order."""
        order = np.argsort(owners, kind="stable")
        sizes = np.bincount(owners[owners >= 0], minlength=clients)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(order[len(owners) - offsets[-1] :].astype(np.int64), offsets)


def partition(targets: Ints, classes: int, config: PartitionConfig, seed: int) -> Partition:
    """Deal the samples with these labels to the clients: a function of the labels, the config and the seed.

    No sample has two clients, and no client is empty.
    """
    n, clients = len(targets), config.clients
    if clients > n:
        raise ConfigError(
            f"data.partition.clients is {clients} but there are {n} train samples; lower it to {n} or less"
        )
    rng = stream(seed, "partition", config.kind)
    owners = _KINDS[config.kind](targets, classes, config, rng)
    if config.samples_per_client is not None:
        owners = _cap(owners, clients, config.samples_per_client, rng)
    return Partition.from_owners(owners, clients)


def sizes_from_weights(weights: Floats, total: int) -> Ints:
    """Whole numbers that add up to `total`, at least 1 each, and else in proportion to the weights."""
    spare = total - len(weights)
    exact = weights / weights.sum() * spare
    sizes: Ints = np.floor(exact).astype(np.int64)
    left = spare - int(sizes.sum())
    largest_rests = np.argsort(sizes - exact, kind="stable")[:left]
    sizes[largest_rests] += 1
    return sizes + 1


def deal(sizes: Ints, samples: Ints, total: int, rng: np.random.Generator) -> Ints:
    """Owners of all `total` samples when client i gets sizes[i] of `samples`, drawn at random."""
    owners = np.full(total, -1, dtype=np.int64)
    chosen = rng.permutation(samples)[: sizes.sum()]
    owners[chosen] = np.repeat(np.arange(len(sizes)), sizes)
    return owners


def _iid(targets: Ints, classes: int, config: PartitionConfig, rng: np.random.Generator) -> Ints:
    return deal(_even(len(targets), config.clients), np.arange(len(targets)), len(targets), rng)


def _lognormal(targets: Ints, classes: int, config: PartitionConfig, rng: np.random.Generator) -> Ints:
    logs = config.sigma * rng.standard_normal(config.clients)
    sizes = sizes_from_weights(np.exp(logs - logs.max()), len(targets))
    return deal(sizes, np.arange(len(targets)), len(targets), rng)


def _shards(targets: Ints, classes: int, config: PartitionConfig, rng: np.random.Generator) -> Ints:
    n, shards = len(targets), config.clients * config.shards_per_client
    if shards > n:
        raise ConfigError(
            f"data.partition.shards_per_client is {config.shards_per_client}, which makes {shards} shards of {n} "
            f"train samples; lower it to {n // config.clients} or less"
        )
    by_label = np.lexsort((rng.permutation(n), targets))
    holder = rng.permutation(np.repeat(np.arange(config.clients), config.shards_per_client))
    owners = np.empty(n, dtype=np.int64)
    owners[by_label] = np.repeat(holder, _even(n, shards))
    return owners


def _dirichlet(targets: Ints, classes: int, config: PartitionConfig, rng: np.random.Generator) -> Ints:
    """Equal sizes: client i draws p_i from Dir(rho), then its labels from p_i, without replacement.

    Labels run out; a client that asks for one that has goes on with p_i restricted to those that are left. All clients
    draw at once, in a new random order each pass, and every pass but the last exhausts a label: at most `classes`.
    """
    n, clients = len(targets), config.clients
    size = min(n // clients, config.samples_per_client or n)
    left = np.bincount(targets, minlength=classes)
    log_weights = _log_gamma_draws(config.rho, (clients, classes), rng)
    granted = np.zeros((clients, classes), dtype=np.int64)
    wanting = np.arange(clients)
    while len(wanting):
        wanting = rng.permutation(wanting)
        open_labels = np.flatnonzero(left)
        needs = size - granted[wanting].sum(axis=1)
        asked = rng.multinomial(needs, _softmax(log_weights[np.ix_(wanting, open_labels)]))
        before = np.cumsum(asked, axis=0) - asked
        given = np.clip(left[open_labels] - before, 0, asked)
        granted[np.ix_(wanting, open_labels)] += given
        left[open_labels] -= given.sum(axis=0)
        wanting = wanting[given.sum(axis=1) < needs]
    return _owners_by_label(targets, granted, rng)


def _dirichlet_free(targets: Ints, classes: int, config: PartitionConfig, rng: np.random.Generator) -> Ints:
    """Free sizes: the samples of each label are cut among all clients in proportions from Dir(rho)."""
    owners = np.empty(len(targets), dtype=np.int64)
    for samples in _samples_by_label(targets, classes, rng):
        shares = _softmax(_log_gamma_draws(config.rho, (1, config.clients), rng))[0]
        cuts = np.floor(np.cumsum(shares)[:-1] * len(samples) + 0.5).astype(np.int64)
        owners[samples] = np.searchsorted(cuts, np.arange(len(samples)), side="right")
    return _feed_empty(owners, config.clients)


_KINDS: dict[Kind, Callable[[Ints, int, PartitionConfig, np.random.Generator], Ints]] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "dirichlet_free": _dirichlet_free,
    "shards": _shards,
    "lognormal": _lognormal,
}


def _even(total: int, parts: int) -> Ints:
    return np.full(parts, total // parts, dtype=np.int64) + (np.arange(parts) < total % parts)


def _log_gamma_draws(rho: float, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Logarithms of Gamma(rho) variables. Normalised they are Dirichlet(rho); in logarithms none underflows to 0."""
    boosted: Floats = np.log(rng.standard_gamma(rho + 1, shape))
    return boosted - rng.standard_exponential(shape) / rho


def _softmax(logs: Floats) -> Floats:
    weights: Floats = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def _samples_by_label(targets: Ints, classes: int, rng: np.random.Generator) -> list[Ints]:
    by_label = np.lexsort((rng.permutation(len(targets)), targets))
    return np.split(by_label, np.cumsum(np.bincount(targets, minlength=classes))[:-1])


def _owners_by_label(targets: Ints, granted: Ints, rng: np.random.Generator) -> Ints:
    """Owners when client i gets granted[i, label] samples of each label."""
    owners = np.full(len(targets), -1, dtype=np.int64)
    for label, samples in enumerate(_samples_by_label(targets, granted.shape[1], rng)):
        counts = granted[:, label]
        owners[samples[: counts.sum()]] = np.repeat(np.arange(len(granted)), counts)
    return owners


def _feed_empty(owners: Ints, clients: int) -> Ints:
    """Give each empty client one sample of whichever client has most at that moment."""
    sizes = np.bincount(owners, minlength=clients)
    empty = np.flatnonzero(sizes == 0)
    richest = [(-int(size), client) for client, size in enumerate(sizes) if size > 1]
    heapq.heapify(richest)
    ends = np.cumsum(sizes)
    order = np.argsort(owners, kind="stable")
    owners = owners.copy()
    for client in empty:
        size, donor = richest[0]
        ends[donor] -= 1  # its last sample that has not gone yet
        owners[order[ends[donor]]] = client
        heapq.heapreplace(richest, (size + 1, donor))
    return owners


def _cap(owners: Ints, clients: int, most: int, rng: np.random.Generator) -> Ints:
    """Take all but `most` samples, chosen at random, from every client that has more."""
    order = np.lexsort((rng.permutation(len(owners)), owners))
    sizes = np.bincount(owners[owners >= 0], minlength=clients)
    starts = np.cumsum(sizes) - sizes
    owned = order[len(owners) - sizes.sum() :]
    rank = np.arange(len(owned)) - np.repeat(starts, sizes)
    capped = owners.copy()
    capped[owned[rank >= most]] = -1
    return capped
