"""Pack small integers at a fixed number of bits each."""

import numpy as np


def packed_bytes(count: int, bits: int) -> int:
    """Return the size in bytes of `count` numbers of `bits` bits."""
    return -(-count * bits // 8)


def pack(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Pack non-negative numbers below 2**bits into bytes, least significant bit first."""
    planes = np.empty((len(numbers), bits), dtype=np.uint8)
    for bit in range(bits):
        planes[:, bit] = (numbers >> bit) & 1
    return np.packbits(planes.reshape(-1), bitorder="little")


def unpack(payload: np.ndarray, count: int, bits: int) -> np.ndarray:
    """Return the numbers passed to `pack`."""
    planes = np.unpackbits(payload, count=count * bits, bitorder="little").reshape(count, bits)
    numbers = np.zeros(count, dtype=np.int64)
    for bit in range(bits):
        numbers |= planes[:, bit].astype(np.int64) << bit
    return numbers
