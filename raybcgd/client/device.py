"""The device of a host: which one it is, how it computes, how much memory it uses, and which errors are fatal."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from raybcgd.errors import first_line
from raybcgd.messages import HostLoad

CPU = torch.device("cpu")


def accelerator() -> torch.device | None:
    """Return the accelerator of this process, or None."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def why_none() -> str:
    """Return in one line why torch finds no accelerator."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:
        return f"torch {torch.__version__} finds no accelerator: {first_line(error)}"
    return f"torch {torch.__version__} finds no accelerator"


def load_of(device: torch.device, state_bytes: int) -> HostLoad:
    """Return the memory that a host uses."""
    if device.type == "cpu":
        return HostLoad(state_bytes, device=kind_of(device))
    allocated, reserved = torch.accelerator.max_memory_allocated(device), torch.accelerator.max_memory_reserved(device)
    return HostLoad(state_bytes, allocated, reserved, kind_of(device))


def kind_of(device: torch.device) -> str:
    """Return the kind of a device. Only devices of the same kind give the same bits."""
    if device.type == "cpu":
        return f"cpu {torch.backends.cpu.get_cpu_capability()}"
    return f"cuda {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type


@contextmanager
def deterministic(device: torch.device, strict: bool, tf32: bool) -> Iterator[None]:
    """Set torch's determinism and TF32 flags for an accelerator, and restore them afterwards. A CPU needs none."""
    if device.type == "cpu":
        yield
        return
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory)  # type: ignore[attr-defined]
    flags = (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32)
    if strict:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(strict)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # filling is slow
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = strict, not strict, tf32, tf32
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]  # type: ignore[attr-defined]
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = flags


def limit_share(device: torch.device, share: float) -> None:
    """Limit this process to its share of a GPU's memory, to protect the other hosts on the same GPU."""
    if device.type == "cuda" and 0 < share < 1:
        torch.cuda.set_per_process_memory_fraction(share, device)


def is_fatal(error: Exception) -> bool:
    """Return whether the error, such as a device-side assert, makes the device unusable for this process."""
    return isinstance(error, torch.AcceleratorError)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether the accelerator ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError)
