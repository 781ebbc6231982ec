"""Randomness as a function of names, independent of which worker draws it and when."""

import hashlib
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence


def seed_of(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed that depends on every name. For a NumPy generator, use `stream`."""
    text = "\x1f".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


class _Key(ISeedSequence):
    """The key of a Philox generator. `Philox(key=...)` is slower: NumPy also draws a seed that it does not use."""

    def __init__(self, key: int) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return np.array([self._key, 0], dtype=np.uint64)


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return an independent generator for these names: `stream(seed, "batches", client, round)`."""
    key: Any = _Key(seed_of(seed, *names))  # NumPy's annotations do not allow it
    return np.random.Generator(np.random.Philox(key))
