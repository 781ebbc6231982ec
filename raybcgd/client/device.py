"""The device of a host: which one it is, how much memory it uses, and which of its errors are fatal."""

import torch

from raybcgd.errors import first_line
from raybcgd.messages import HostLoad

CPU = torch.device("cpu")


def accelerator() -> torch.device | None:
    """Return the accelerator of this process, or None."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def why_none() -> str:
    """Return one line that says why torch finds no accelerator."""
    try:
        torch.cuda.init()
    except Exception as error:
        return f"torch {torch.__version__} finds no accelerator: {first_line(error)}"
    return f"torch {torch.__version__} finds no accelerator"


def load_of(device: torch.device, state_bytes: int) -> HostLoad:
    """Return the memory that a host uses."""
    if device.type == "cpu":
        return HostLoad(state_bytes)
    allocated, reserved = torch.accelerator.max_memory_allocated(device), torch.accelerator.max_memory_reserved(device)
    return HostLoad(state_bytes, allocated, reserved)


def is_fatal(error: Exception) -> bool:
    """Return whether no later call on the device can succeed in this process, as after a device-side assert."""
    return isinstance(error, torch.AcceleratorError)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether the accelerator has too little memory."""
    return isinstance(error, torch.OutOfMemoryError)
