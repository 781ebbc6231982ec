"""Data sets from Python: torch's data sets, and tuples of arrays."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from raybcgd.data.dataset import Dataset
from raybcgd.errors import ConfigError, named_line

_HOW = (
    "pass a raybcgd.Dataset, such as Dataset.from_tensors(x, y, x_test, y_test), or a pair (train, test) of torch data "
    "sets"
)


def as_dataset(given: Any) -> Dataset:
    """Return the data set that a user passed: ours, a pair of torch data sets, or (x, y, x_test, y_test)."""
    if isinstance(given, Dataset):
        return given
    if isinstance(given, TorchDataset):
        raise ConfigError(f"dataset is one {type(given).__name__}, without test data; {_HOW}")
    if isinstance(given, tuple) and len(given) == 4:
        return Dataset.from_tensors(*given)
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, TorchDataset) for part in given):
        (x, y), (x_test, y_test) = (_arrays(part) for part in given)
        return Dataset.from_tensors(x, y, x_test, y_test, name=type(given[0]).__name__)
    kind = f"a tuple of {len(given)}" if isinstance(given, tuple) else type(given).__name__
    raise ConfigError(f"dataset is {kind}; {_HOW}")


def _arrays(dataset: Any) -> tuple[Any, Any]:
    """Return the inputs and targets of a torch data set. Its transforms are applied once."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors
    name = type(dataset).__name__
    try:
        samples = [dataset[k] for k in range(len(dataset))]
        inputs = [_input(sample[0]) for sample in samples]
        return np.stack(inputs), np.array([_target(sample[1]) for sample in samples])
    # A user's data set may raise anything.
    except Exception as error:
        raise ConfigError(
            f"dataset {name} cannot be read ({named_line(error)}); its entries must be (input, target), with inputs of "
            "one shape and targets that are integers, or floats for regression"
        ) from error


def _input(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        return value.numpy(force=True)
    array = np.asarray(value)
    is_image = array.dtype == np.uint8 and hasattr(value, "getbands")  # PIL's images have their channels last
    return np.atleast_3d(array).transpose(2, 0, 1) if is_image else array


def _target(value: Any) -> int | float:
    """Return a target as a number: floats, which are for regression, must not be truncated to integers."""
    number = value.item() if hasattr(value, "item") else value
    return float(number) if isinstance(number, float) else int(number)
