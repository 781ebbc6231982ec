"""raybcgd: a Ray-distributed simulator of federated block-coordinate gradient descent."""

import importlib
import os
from typing import TYPE_CHECKING, Any

# Without this MKL's sums depend on how memory is aligned, and so a client's bits on its place in a stack of clients.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

if TYPE_CHECKING:
    from raybcgd.algorithms.api import (
        Algorithm,
        Nothing,
        OwnBlock,
        Round,
        Scalar,
        SharedBlock,
        Summed,
        Task,
        Whole,
        Work,
    )
    from raybcgd.config import Config, load_config
    from raybcgd.data.dataset import Dataset
    from raybcgd.errors import ConfigError, RunError
    from raybcgd.record.rounds import RoundRecord
    from raybcgd.running import RunResult, run

__all__ = [
    "Algorithm",
    "Config",
    "ConfigError",
    "Dataset",
    "Nothing",
    "OwnBlock",
    "Round",
    "RoundRecord",
    "RunError",
    "RunResult",
    "Scalar",
    "SharedBlock",
    "Summed",
    "Task",
    "Whole",
    "Work",
    "load_config",
    "run",
]

_HOMES = {
    "raybcgd.config": ("Config", "load_config"),
    "raybcgd.data.dataset": ("Dataset",),
    "raybcgd.errors": ("ConfigError", "RunError"),
    "raybcgd.record.rounds": ("RoundRecord",),
    "raybcgd.running": ("RunResult", "run"),
}
"""Where names are that are not of the algorithms' interface."""


if not TYPE_CHECKING:  # which knows the names from above, and would take any from here

    def __getattr__(name: str) -> Any:
        """Import what is asked for when it is: the command line answers Ctrl-C before torch is there."""
        if name in __all__:
            home = next((module for module, names in _HOMES.items() if name in names), "raybcgd.algorithms.api")
            return getattr(importlib.import_module(home), name)
        try:
            return importlib.import_module(f"raybcgd.{name}")
        except ModuleNotFoundError:
            raise AttributeError(f"module 'raybcgd' has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        return __all__
