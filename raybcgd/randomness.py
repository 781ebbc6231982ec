"""Randomness as a function of names, never of which worker draws it or when."""

import hashlib

import numpy as np


def seed_of(seed: int, *names: str | int) -> int:
    """A 63-bit integer that depends on every name, for generators that are not numpy's."""
    text = "\x1f".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """A generator of its own for every combination of names: `stream(seed, "batches", client, round)`."""
    return np.random.Generator(np.random.Philox(key=seed_of(seed, *names)))
