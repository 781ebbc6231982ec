"""The stand-in accelerator itself: what it refuses, what it counts, and what torch sees of it."""

import copy
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
import torch
from standin import counting
from torch import nn

pytestmark = pytest.mark.device

DEVICE = "standin"


def on_device(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device=DEVICE)


@pytest.mark.parametrize(
    "mixed",
    [
        lambda: on_device(2, 3) + torch.ones(2, 3),
        lambda: torch.ones(2, 3) + on_device(),
        lambda: on_device(2, 3) @ torch.ones(3, 2),
        lambda: on_device(2, 3).index_select(0, torch.tensor([0])),
        lambda: torch.ones(3)[torch.tensor([0], device=DEVICE)],
        lambda: on_device(3).add_(torch.ones(3)),
        lambda: nn.functional.cross_entropy(on_device(2, 3), torch.tensor([0, 1])),
        lambda: torch.where(on_device(3) > 0, torch.ones(3), on_device(3)),
        lambda: torch.stack([on_device(3), torch.ones(3)]),
        lambda: on_device(3) + torch.ones(3, device="standin:1"),
        lambda: nn.Conv2d(1, 1, 2)(on_device(1, 1, 4, 4)),
    ],
)
def test_it_refuses_tensors_on_two_devices(mixed: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(RuntimeError, match="on the same device"):
        mixed()


def test_it_accepts_scalars_and_indices_on_the_host() -> None:
    assert (on_device(3) + torch.tensor(1.0)).tolist() == [2, 2, 2]
    x = on_device(3)
    x[torch.tensor([1])] = 5
    assert x[torch.tensor([0, 1])].tolist() == [1, 5]


def test_it_refuses_generators_of_the_host() -> None:
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(3, device=DEVICE, generator=torch.Generator())
    seeded = [torch.randn(3, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(1)) for _ in range(2)]
    assert torch.equal(*seeded)


def test_a_seed_applies_to_its_own_generator_too() -> None:
    torch.manual_seed(3)
    drawn = torch.randn(5, device=DEVICE).cpu()
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.randn(5)), "drawing on the device must not advance the generator of the host"


def test_copies_are_counted_with_their_bytes_and_lines() -> None:
    host = torch.ones(10, dtype=torch.float64)
    with counting() as copies:
        x = host.to(DEVICE, torch.float32)  # the 40 bytes of float32
        x.cpu()  # 40
        float(x.sum())  # 4
        x.tolist()  # 40
        torch.equal(x, x)  # 1
        x[torch.tensor([1, 2])]  # 16
        x[x > 0]  # the number of results: 8
        x[torch.tensor([1])] = on_device(1)  # 8
        x[0] = 3.0
        (x * 2 + 1).sum()
        x.to(DEVICE)
    assert (copies.to_device.copies, copies.to_device.bytes) == (3, 40 + 16 + 8)
    assert (copies.to_host.copies, copies.to_host.bytes) == (5, 40 + 4 + 40 + 1 + 8)
    here = Path(__file__).name
    assert all(f"{here}:" in line for line in (*copies.to_device.bytes_by_line, *copies.to_host.bytes_by_line))
    assert len(copies.to_host.bytes_by_line) == 5
    before = copies.to_device.bytes
    host.to(DEVICE)
    assert copies.to_device.bytes == before, "copies after the block do not count"


def test_copies_of_all_threads_are_counted() -> None:
    def work() -> None:
        for _ in range(200):
            torch.ones(2).to(DEVICE)

    threads = [Thread(target=work) for _ in range(4)]
    with counting() as copies:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (copies.to_device.copies, copies.to_device.bytes) == (800, 6400)


class _Host(torch.autograd.Function):
    """The identity, whose backward pass goes through the host."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.cpu().to(DEVICE)


def test_copies_in_the_backward_pass_are_counted() -> None:
    x = on_device(4).requires_grad_()
    with counting() as copies:
        _Host.apply(x).sum().backward()
    assert (copies.to_host.bytes, copies.to_device.bytes) == (16, 16)


def test_a_network_has_the_bits_of_the_cpu_and_copies_nothing() -> None:
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 4), nn.Flatten()]
    inputs, targets = torch.randn(6, 1, 8, 8), torch.arange(6)
    net = nn.Sequential(*layers, nn.Linear(36, 8), nn.LayerNorm(8))
    results = []
    for device in ("cpu", DEVICE):
        mine, x, y = copy.deepcopy(net).to(device), inputs.to(device), targets.to(device)
        with counting() as copies:
            nn.functional.cross_entropy(mine(x), y).backward()
        assert (copies.to_device.copies, copies.to_host.copies) == (0, 0)
        results.append([t.cpu() for t in (*(p.grad for p in mine.parameters()), *mine.buffers()) if t is not None])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_torch_sees_two_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device(DEVICE)
    assert torch.accelerator.device_count() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert torch.accelerator.device_count() == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not torch.accelerator.is_available()


@pytest.fixture
def small_memory() -> Iterator[int]:
    """Devices with a megabyte each."""
    gc.collect()  # earlier runs leave cycles
    torch.standin.limit_memory(2**20)
    yield 2**20
    torch.standin.limit_memory(2**40)


def test_memory_is_measured_and_limited(small_memory: int) -> None:
    before = torch.accelerator.memory_allocated()
    x = on_device(1000)
    y = x * 2
    assert torch.accelerator.memory_allocated() - before == 8000
    del x, y
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() >= before + 8000
    with pytest.raises(torch.OutOfMemoryError):
        on_device(small_memory)
    free, total = torch.accelerator.get_memory_info()
    assert (free, total) == (small_memory - before, small_memory)


def test_pinned_memory_streams_and_events_exist() -> None:
    x = torch.ones(3).pin_memory()
    assert x.is_pinned()
    assert x[1:].is_pinned()
    assert x.to(DEVICE, non_blocking=True).tolist() == [1, 1, 1]
    torch.accelerator.synchronize()
    torch.accelerator.current_stream().synchronize()
    event = torch.Event(DEVICE)
    event.record()
    event.synchronize()


@pytest.fixture
def healed() -> Iterator[None]:
    """Repair the device after the test. CUDA needs a new process for that."""
    yield
    torch.standin.poison(False)


@pytest.mark.usefixtures("healed")
@pytest.mark.parametrize(
    "out_of_bounds",
    [
        lambda: nn.functional.cross_entropy(on_device(2, 3), torch.tensor([0, 3], device=DEVICE)),
        lambda: on_device(3)[torch.tensor([3], device=DEVICE)],
        lambda: on_device(3).index_select(0, torch.tensor([3], device=DEVICE)),
    ],
)
def test_an_index_out_of_bounds_poisons_the_device(out_of_bounds: Callable[[], torch.Tensor]) -> None:
    x = on_device(3)
    with pytest.raises(torch.AcceleratorError, match="device-side assert"):
        out_of_bounds()
    for later in (lambda: x + 1, x.cpu, lambda: torch.ones(3).to(DEVICE), lambda: x[0].item()):
        with pytest.raises(torch.AcceleratorError, match="device-side assert"):
            later()


def test_a_wrong_dimension_does_not_poison_the_device() -> None:
    with pytest.raises(IndexError):
        on_device(3).sum(4)
    assert on_device(3).sum().item() == 3


def test_autocast_lowers_the_precision_of_products() -> None:
    x = on_device(3, 3)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert (x @ x).exp().dtype == torch.float32
