"""raybcgd: a Ray-distributed simulator of federated block-coordinate gradient descent."""

import os

# Without this MKL's sums depend on how memory is aligned, and so a client's bits on its place in a stack of clients.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

from raybcgd.algorithms.api import Algorithm, Nothing, OwnBlock, Round, Scalar, SharedBlock, Summed, Task, Whole, Work
from raybcgd.config import Config, load_config
from raybcgd.data.dataset import Dataset
from raybcgd.errors import ConfigError, RunError
from raybcgd.record.rounds import RoundRecord
from raybcgd.run import RunResult, run

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
