"""Randomness as a function of names, independent of which worker draws it and when."""

import hashlib

import numpy as np


def seed_of(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed that depends on every name, for generators other than NumPy's."""
    text = "\x1f".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return an independent generator for these names: `stream(seed, "batches", client, round)`."""
    return np.random.Generator(np.random.Philox(key=seed_of(seed, *names)))
