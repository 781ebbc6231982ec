"""`torch.standin`: what torch expects of a device module."""

from typing import Any

import torch

backend: Any = None
"""The C++ extension. Set when it is loaded."""


def is_available() -> bool:
    """Return whether there is a device."""
    return device_count() > 0


def device_count() -> int:
    """Return the number of devices that `CUDA_VISIBLE_DEVICES` leaves visible."""
    return int(backend.device_count())


def current_device() -> int:
    """Return the index of the current device."""
    return torch.accelerator.current_device_index()


def set_device(index: int) -> None:
    """Set the current device."""
    torch.accelerator.set_device_index(index)


def synchronize(device: torch.device | int | None = None) -> None:
    """Do nothing: kernels have run when they return."""


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices."""
    backend.seed(seed % 2**64)


def _is_in_bad_fork() -> bool:
    return False


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes of `torch.autocast`."""
    return [torch.bfloat16, torch.float16]


def poison(value: bool = True) -> None:
    """Make every call fail, as CUDA does after a device-side assert. An index out of bounds does this too."""
    backend.poison(value)


def limit_memory(size: int) -> None:
    """Set the memory of each device in bytes. Beyond it, allocations raise `torch.OutOfMemoryError`."""
    backend.limit_memory(size)
