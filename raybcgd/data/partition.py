"""Partitions: the split of the training samples among the clients."""

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import Field

from raybcgd.data.clients import Clients
from raybcgd.data.settings import PARTITIONS, PartitionConfig
from raybcgd.errors import ConfigError
from raybcgd.randomness import stream

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Partition:
    """The clients' sample indices, concatenated. Client i has those from offsets[i] to offsets[i + 1]."""

    indices: Ints
    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def client(self, i: int) -> Ints:
        """Return the sample indices of client i, as a view."""
        return self.indices[self.offsets[i] : self.offsets[i + 1]]

    @property
    def sizes(self) -> Ints:
        """The number of samples per client."""
        return np.diff(self.offsets)

    @classmethod
    def from_owners(cls, owners: Ints, clients: int) -> "Partition":
        """Make a partition from the owner of each sample, -1 for none. Each client's indices are sorted."""
        order = np.argsort(owners, kind="stable")
        sizes = np.bincount(owners[owners >= 0], minlength=clients)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(order[len(owners) - offsets[-1] :].astype(np.int64), offsets)


class Partitioner(PartitionConfig):
    """Base class of all partitions. Implement `owners`. Pydantic fields are settings of `[data.partition]`."""

    def owners(self, targets: Ints, classes: int, rng: np.random.Generator) -> Ints:
        """Return the client of each training sample, from 0 to `self.clients` - 1, or -1 for no client.

        Every client must get at least one sample.
        """
        raise NotImplementedError

    @property
    def label(self) -> str:
        """The name in tables and plots."""
        return PARTITIONS.name_of(type(self))


def partition(targets: Ints, classes: int, config: PartitionConfig, seed: int, own: Clients | None = None) -> Partition:
    """Split the training samples among the clients. The result depends only on the arguments.

    `own` are the clients of the data set, for the natural partition.
    """
    assert isinstance(config, Partitioner)
    n, clients, kind = len(targets), config.clients, PARTITIONS.name_of(type(config))
    if clients > n:
        raise ConfigError(
            f"data.partition.clients = {clients} is more than the {n} training samples; lower it to {n} or less"
        )
    rng = stream(seed, "partition", kind)
    if isinstance(config, Natural) and own is not None:
        owners = own.owners
    else:
        with PARTITIONS.running(type(config)):
            owners = np.asarray(config.owners(targets, classes, rng))
    _check(owners, n, clients, kind)
    if config.samples_per_client is not None:
        owners = _cap(owners, clients, config.samples_per_client, rng)
    return Partition.from_owners(owners, clients)


def _check(owners: Ints, samples: int, clients: int, kind: str) -> None:
    """Check the owners that a custom partition returns."""
    problem = ""
    if owners.shape != (samples,) or owners.dtype.kind not in "iu":
        problem = f"returned {owners.dtype} of shape {owners.shape}; return one integer per training sample"
    elif owners.min() < -1 or owners.max() >= clients:
        problem = f"returned clients from {owners.min()} to {owners.max()}; return 0 to {clients - 1}, or -1 for none"
    elif len(empty := np.setdiff1d(np.arange(clients), owners)):
        problem = f"left client {empty[0]} without samples; give every client at least one"
    if problem:
        raise ConfigError(f'data.partition.kind = "{kind}" {problem}')


def sizes_from_weights(weights: Floats, total: int) -> Ints:
    """Return integers that sum to `total`, at least 1 each and otherwise proportional to the weights."""
    spare = total - len(weights)
    exact = weights / weights.sum() * spare
    sizes: Ints = np.floor(exact).astype(np.int64)
    left = spare - int(sizes.sum())
    largest_remainders = np.argsort(sizes - exact, kind="stable")[:left]
    sizes[largest_remainders] += 1
    return sizes + 1


def split_at_random(sizes: Ints, samples: Ints, total: int, rng: np.random.Generator) -> Ints:
    """Assign sizes[i] random `samples` to client i. Return the owner of each of the `total` samples, or -1."""
    owners = np.full(total, -1, dtype=np.int64)
    chosen = rng.permutation(samples)[: sizes.sum()]
    owners[chosen] = np.repeat(np.arange(len(sizes)), sizes)
    return owners


class Natural(Partitioner):
    """The clients of the data set: `data.client_column`, or a partition from Python."""

    clients: int = Field(0, ge=0)
    """M, the number of clients. Do not set it: the data set defines it."""

    def owners(self, targets: Ints, classes: int, rng: np.random.Generator) -> Ints:
        raise ConfigError(
            'data.partition.kind = "natural" needs data with clients; set data.client_column, or pass partition=… '
            "from Python"
        )


class IID(Partitioner):
    """Equal sizes, mixed labels."""

    def owners(self, targets: Ints, classes: int, rng: np.random.Generator) -> Ints:
        return split_at_random(_even(len(targets), self.clients), np.arange(len(targets)), len(targets), rng)


class LogNormal(Partitioner):
    """Log-normal sizes, mixed labels."""

    sigma: float = Field(1.0, ge=0, le=20)
    """Standard deviation of the logarithm of a client's size."""

    def owners(self, targets: Ints, classes: int, rng: np.random.Generator) -> Ints:
        logs = self.sigma * rng.standard_normal(self.clients)
        sizes = sizes_from_weights(np.exp(logs - logs.max()), len(targets))
        return split_at_random(sizes, np.arange(len(targets)), len(targets), rng)


class Shards(Partitioner):
    """Samples sorted by label and cut into equal shards; each client gets a few (McMahan et al., 2017)."""

    shards_per_client: int = Field(2, ge=1)
    """Shards per client."""

    def owners(self, targets: Ints, classes: int, rng: np.random.Generator) -> Ints:
        n, shards = len(targets), self.clients * self.shards_per_client
        if shards > n:
            raise ConfigError(
                f"data.partition.shards_per_client = {self.shards_per_client} needs {shards} shards, but there are {n} "
                f"training samples; lower it to at most {n // self.clients}"
            )
        by_label = np.lexsort((rng.permutation(n), targets))
        holder = rng.permutation(np.repeat(np.arange(self.clients), self.shards_per_client))
        owners = np.empty(n, dtype=np.int64)
        owners[by_label] = np.repeat(holder, _even(n, shards))
        return owners


class Dirichlet(Partitioner):
    """Equal sizes; each client has its own label proportions from a Dirichlet distribution."""

    rho: float = Field(0.6, ge=1e-9, le=1e9)
    """Dirichlet concentration: small means few labels per client, large approaches iid."""

    def owners(self, targets: Ints, classes: int, rng: np.random.Generator) -> Ints:
        """Draw label proportions p_i from Dir(rho) for client i, then its labels from p_i without replacement.

        When a label runs out, p_i is restricted to the remaining labels. In each pass, all clients that need more
        samples draw in a new random order. Every pass but the last exhausts a label: at most `classes` passes.
        """
        n, clients = len(targets), self.clients
        size = min(n // clients, self.samples_per_client or n)
        left = np.bincount(targets, minlength=classes)
        log_weights = _log_gamma_draws(self.rho, (clients, classes), rng)
        granted = np.zeros((clients, classes), dtype=np.int64)
        unfilled = np.arange(clients)
        while len(unfilled):
            unfilled = rng.permutation(unfilled)
            open_labels = np.flatnonzero(left)
            needs = size - granted[unfilled].sum(axis=1)
            asked = rng.multinomial(needs, _softmax(log_weights[np.ix_(unfilled, open_labels)]))
            before = np.cumsum(asked, axis=0) - asked
            given = np.clip(left[open_labels] - before, 0, asked)
            granted[np.ix_(unfilled, open_labels)] += given
            left[open_labels] -= given.sum(axis=0)
            unfilled = unfilled[given.sum(axis=1) < needs]
        return _owners_by_label(targets, granted, rng)

    @property
    def label(self) -> str:
        return f"Dirichlet({self.rho:g})"


class DirichletFree(Partitioner):
    """Variable sizes; each label is split among all clients in proportions from a Dirichlet distribution."""

    rho: float = Field(0.6, ge=1e-9, le=1e9)
    """Dirichlet concentration: small means few labels per client, large approaches iid."""

    def owners(self, targets: Ints, classes: int, rng: np.random.Generator) -> Ints:
        owners = np.empty(len(targets), dtype=np.int64)
        for samples in _samples_by_label(targets, classes, rng):
            shares = _softmax(_log_gamma_draws(self.rho, (1, self.clients), rng))[0]
            cuts = np.floor(np.cumsum(shares)[:-1] * len(samples) + 0.5).astype(np.int64)
            owners[samples] = np.searchsorted(cuts, np.arange(len(samples)), side="right")
        return _fill_empty(owners, self.clients)

    @property
    def label(self) -> str:
        return f"Dirichlet({self.rho:g}), variable sizes"


def _even(total: int, parts: int) -> Ints:
    return np.full(parts, total // parts, dtype=np.int64) + (np.arange(parts) < total % parts)


def _log_gamma_draws(rho: float, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Draw logarithms of Gamma(rho) variables, which normalise to Dirichlet(rho). Logarithms do not underflow."""
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
    """Assign granted[i, label] samples of each label to client i. Return the owners."""
    owners = np.full(len(targets), -1, dtype=np.int64)
    for label, samples in enumerate(_samples_by_label(targets, granted.shape[1], rng)):
        counts = granted[:, label]
        owners[samples[: counts.sum()]] = np.repeat(np.arange(len(granted)), counts)
    return owners


def _fill_empty(owners: Ints, clients: int) -> Ints:
    """Move one sample to each empty client, each time from the client with the most samples."""
    sizes = np.bincount(owners, minlength=clients)
    empty = np.flatnonzero(sizes == 0)
    donors = [(-int(size), client) for client, size in enumerate(sizes) if size > 1]
    heapq.heapify(donors)
    ends = np.cumsum(sizes)
    order = np.argsort(owners, kind="stable")
    owners = owners.copy()
    for client in empty:
        size, donor = donors[0]
        ends[donor] -= 1  # its last remaining sample
        owners[order[ends[donor]]] = client
        heapq.heapreplace(donors, (size + 1, donor))
    return owners


def _cap(owners: Ints, clients: int, limit: int, rng: np.random.Generator) -> Ints:
    """Limit every client to `limit` samples, chosen at random."""
    order = np.lexsort((rng.permutation(len(owners)), owners))
    sizes = np.bincount(owners[owners >= 0], minlength=clients)
    starts = np.cumsum(sizes) - sizes
    owned = order[len(owners) - sizes.sum() :]
    rank = np.arange(len(owned)) - np.repeat(starts, sizes)
    capped = owners.copy()
    capped[owned[rank >= limit]] = -1
    return capped
