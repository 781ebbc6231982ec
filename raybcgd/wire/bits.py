"""Small whole numbers side by side, each in as few bits as all of them need."""

import numpy as np


def packed_bytes(count: int, bits: int) -> int:
    """The bytes that `count` numbers of `bits` bits take."""
    return -(-count * bits // 8)


def pack(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Non-negative numbers below 2**bits as bytes, the lowest bit of the first number first."""
    planes = np.empty((len(numbers), bits), dtype=np.uint8)
    for bit in range(bits):
        planes[:, bit] = (numbers >> bit) & 1
    return np.packbits(planes.reshape(-1), bitorder="little")


def unpack(payload: np.ndarray, count: int, bits: int) -> np.ndarray:
    """The numbers that `pack` was given."""
    planes = np.unpackbits(payload, count=count * bits, bitorder="little").reshape(count, bits)
    numbers = np.zeros(count, dtype=np.int64)
    for bit in range(bits):
        numbers |= planes[:, bit].astype(np.int64) << bit
    return numbers
