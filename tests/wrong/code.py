"""Wrong models, losses, sources, partitions and codecs, as a user might write them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raybcgd import Codec, Dataset, Partitioner

NUMBER = 3


class Net(nn.Sequential):
    """A network for the digits whose forward pass the classes below break."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


# Models


def not_a_module() -> int:
    return 3


def no_parameters() -> nn.Module:
    return nn.Flatten()


def frozen() -> nn.Module:
    return Net().requires_grad_(False)


def half() -> nn.Module:
    return Net().half()


def for_cifar() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))


def lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))


def on_meta() -> nn.Module:
    return Net().to("meta")


def one_output() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1))


class Failing(Net):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("the attention mask\nhas the wrong shape")


class Misspelled(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.hiden(x)  # type: ignore[operator]


class FailingInTraining(Net):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            raise RuntimeError("only in training")
        return super().forward(x)


class Lists(Net):
    def forward(self, x: Tensor) -> Any:
        return [super().forward(x).sum()]


class Nothing(Net):
    def forward(self, x: Tensor) -> Any:
        print(end="")


class Unlabelled(Net):
    def forward(self, x: Tensor) -> Any:
        return {"hidden": x, "scores": super().forward(x)}


class Labels(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).argmax(-1)


class Detached(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class NotANumber(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float("nan")


class Squeezed(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


class WithoutSuper(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(64, 10)


class NeedsArguments(Net):
    def __init__(self, width: int, *, depth: int) -> None:
        super().__init__()


def one_argument(input_shape: tuple[int, ...]) -> nn.Module:
    return Net()


# Losses


def vector_loss(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def no_reduction(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


def float_loss(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> float:
    return float(nn.functional.cross_entropy(outputs, targets))


def failing_loss(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    return nn.functional.mse_loss(outputs, targets.float(), reduction=reduction)


# Sources


def returns_nothing(config: Any) -> None:
    pass


def returns_a_tuple(config: Any) -> Any:
    return torch.zeros(8, 4), torch.zeros(8)


def fails(config: Any) -> Dataset:
    raise FileNotFoundError(2, "No such file or directory", "/data/train.csv")


def no_argument() -> Dataset:
    raise AssertionError


def _data(inputs: Tensor, targets: Tensor, test: int = 20) -> Dataset:
    return Dataset.from_tensors(inputs[test:], targets[test:], inputs[:test], targets[:test])


def with_nan(config: Any) -> Dataset:
    inputs = torch.randn(120, 64)
    inputs[50, 3] = float("nan")
    return _data(inputs, torch.arange(120) % 10)


def float_labels(config: Any) -> Dataset:
    return _data(torch.randn(120, 64), torch.rand(120))


def fewer_labels(config: Any) -> Dataset:
    return Dataset.from_tensors(torch.randn(100, 64), torch.arange(90) % 10, torch.randn(9, 64), torch.arange(9))


def no_test(config: Any) -> Dataset:
    return _data(torch.randn(120, 64), torch.arange(120) % 10, test=0)


def no_train(config: Any) -> Dataset:
    return _data(torch.randn(20, 64), torch.arange(20) % 10)


def vectors(config: Any) -> Dataset:
    return _data(torch.randn(120, 64), torch.arange(120) % 10)


def minus_one(config: Any) -> Dataset:
    return _data(torch.randn(120, 64), torch.arange(120) % 10 - 1)


def one_hot(config: Any) -> Dataset:
    return _data(torch.randn(120, 64), torch.eye(10)[torch.arange(120) % 10])


def two_outputs(config: Any) -> Dataset:
    return _data(torch.randn(120, 64), torch.rand(120, 2))


def other_test_shape(config: Any) -> Dataset:
    labels = torch.arange(100) % 10
    return Dataset.from_tensors(torch.randn(100, 64), labels, torch.randn(10, 65), labels[:10])


def scalars(config: Any) -> Dataset:
    return _data(torch.tensor(1.0), torch.tensor(1))


# Partitions and codecs


class TooFew(Partitioner):
    """Owners for a few samples only."""

    def owners(self, targets: Any, classes: int, rng: np.random.Generator) -> Any:
        return np.zeros(3, np.int64)


class Strangers(Partitioner):
    """A client that does not exist."""

    def owners(self, targets: Any, classes: int, rng: np.random.Generator) -> Any:
        return np.full(len(targets), self.clients)


class FailingPartition(Partitioner):
    """Fails."""

    def owners(self, targets: Any, classes: int, rng: np.random.Generator) -> Any:
        raise KeyError("site")


class ShortCodec(Codec):
    """Sends fewer bytes than it declares."""

    def encode(self, values: Tensor, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(2, np.uint8)

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(length, dtype=dtype)

    def size(self, length: int, dtype: torch.dtype) -> int:
        return 4


class FailingCodec(ShortCodec):
    """Cannot decode."""

    def encode(self, values: Tensor, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(4, np.uint8)

    def decode(self, payload: np.ndarray, length: int, dtype: torch.dtype) -> Tensor:
        raise ValueError("bad magic")
