"""A data set's own clients: lists of sample indices from Python, or a column of client ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from raybcgd.errors import ConfigError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Clients:
    """The clients of a data set."""

    owners: Ints
    """The client of each training sample, from 0; -1 for samples without a client."""
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Clients({len(self)} clients of {len(self.owners)} samples)"

    def describe(self, client: int) -> str:
        """Return how errors name a client: by its name, and by its index if that differs."""
        index = "" if self.names[client] == str(client) else f" (index {client})"
        return f"client {self.names[client]}{index}"

    def take(self, rows: Ints) -> Self:
        """Return the clients of some of the samples."""
        return replace(self, owners=self.owners[rows])


def as_clients(given: Any, samples: int) -> Clients:
    """Return the clients that a user passed: lists of sample indices, such lists by name, or one id per sample.

    Clients that are already checked are returned as they are.
    """
    if isinstance(given, Clients) and len(given.owners) == samples:
        return given
    names = tuple(map(str, given)) if isinstance(given, Mapping) else None
    parts = _items(given.values() if isinstance(given, Mapping) else given)
    if names is None and (isinstance(parts[0], str) or not hasattr(parts[0], "__len__")):
        return clients_from_ids(np.asarray(parts), samples, "partition")
    names = names or tuple(map(str, range(len(parts))))
    if len(parts) == 1:
        raise ConfigError("partition has one client; give at least two, one list of sample indices each")
    owners = np.full(samples, -1, dtype=np.int64)
    for number, (name, part) in enumerate(zip(names, parts, strict=True)):
        indices = _indices(name, part, samples)
        taken = indices[owners[indices] >= 0]
        if len(taken):
            both = f"clients {names[owners[taken[0]]]} and {name}"
            raise ConfigError(f"partition gives sample {taken[0]} to {both}; a sample can have only one client")
        owners[indices] = number
    return Clients(owners, names)


def clients_from_ids(ids: npt.NDArray[Any], samples: int, setting: str) -> Clients:
    """Return the clients from one id per sample. Clients are numbered in the order of their ids."""
    if ids.shape != (samples,):
        raise ConfigError(
            f"{setting} has {len(ids)} client ids for {samples} training samples; give one id per sample, or one list "
            "of sample indices per client"
        )
    if ids.dtype.kind not in "iuUS":
        raise ConfigError(f"{setting} has client ids of type {ids.dtype}; use integers or strings")
    found, owners = np.unique(ids, return_inverse=True)
    if len(found) == 1:
        raise ConfigError(f"{setting} has the same client id, {found[0]}, for every sample; use ids of several clients")
    return Clients(owners.astype(np.int64), tuple(map(str, found.tolist())))


def _items(given: Any) -> Sequence[Any]:
    if hasattr(given, "numpy"):  # a tensor
        given = given.numpy(force=True)
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        raise ConfigError(f"partition is {type(given).__name__}; pass one list of sample indices per client")
    parts = list(given)
    if not parts:
        raise ConfigError("partition has no clients; pass one list of sample indices per client")
    return parts


def _indices(name: str, part: Any, samples: int) -> Ints:
    """Return the sample indices of one client, checked."""
    try:
        indices = np.asarray(part)
    except (TypeError, ValueError):  # entries of different lengths
        indices = np.empty(0, dtype=object)
    problem = ""
    if indices.size == 0 and indices.dtype != object:
        problem = "has no samples; give every client at least one"
    elif indices.ndim != 1 or indices.dtype.kind not in "iu":
        problem = "is not a flat list of integers; list its sample indices"
    elif indices.min() < 0 or indices.max() >= samples:
        wrong = indices[(indices < 0) | (indices >= samples)][0]
        problem = f"has sample {wrong}, but there are {samples} training samples; use 0 to {samples - 1}"
    elif len(np.unique(indices)) < len(indices):
        values, counts = np.unique(indices, return_counts=True)
        problem = f"has sample {values[counts > 1][0]} twice; list every sample once"
    if problem:
        raise ConfigError(f"partition: client {name} {problem}")
    return indices.astype(np.int64)
