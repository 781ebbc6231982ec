"""raybcgd: a Ray-distributed simulator of federated block-coordinate gradient descent."""

import os
from typing import TYPE_CHECKING

from raybcgd.lazy import extend_path, lazy

extend_path()

# Without this, MKL's sums depend on memory alignment, so a client's result would depend on its position in a stack.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

_INTERFACE = (
    "Algorithm",
    "ControlVariate",
    "Count",
    "Displacement",
    "Momentum",
    "Nothing",
    "OwnBlock",
    "PerPhase",
    "PhaseCounts",
    "Round",
    "Scalar",
    "SharedBlock",
    "Summed",
    "Task",
    "Whole",
    "Work",
)
"""The names that an algorithm's code needs."""

if TYPE_CHECKING:
    from raybcgd.algorithms.api import Algorithm as Algorithm
    from raybcgd.algorithms.api import ControlVariate as ControlVariate
    from raybcgd.algorithms.api import Count as Count
    from raybcgd.algorithms.api import Displacement as Displacement
    from raybcgd.algorithms.api import Momentum as Momentum
    from raybcgd.algorithms.api import Nothing as Nothing
    from raybcgd.algorithms.api import OwnBlock as OwnBlock
    from raybcgd.algorithms.api import PerPhase as PerPhase
    from raybcgd.algorithms.api import PhaseCounts as PhaseCounts
    from raybcgd.algorithms.api import Round as Round
    from raybcgd.algorithms.api import Scalar as Scalar
    from raybcgd.algorithms.api import SharedBlock as SharedBlock
    from raybcgd.algorithms.api import Summed as Summed
    from raybcgd.algorithms.api import Task as Task
    from raybcgd.algorithms.api import Whole as Whole
    from raybcgd.algorithms.api import Work as Work
    from raybcgd.config import Config as Config
    from raybcgd.config import load_config as load_config
    from raybcgd.data.dataset import Dataset as Dataset
    from raybcgd.data.partition import Partitioner as Partitioner
    from raybcgd.errors import ConfigError as ConfigError
    from raybcgd.errors import RunError as RunError
    from raybcgd.experiment import run as run
    from raybcgd.opened import Run as Run
    from raybcgd.opened import figures as figures
    from raybcgd.record.rounds import RoundRecord as RoundRecord
    from raybcgd.results import RunResult as RunResult
    from raybcgd.wire.codecs import Codec as Codec
else:  # imported on first use, so that the command line handles Ctrl-C before torch is loaded
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "raybcgd.algorithms.api": _INTERFACE,
            "raybcgd.config": ("Config", "load_config"),
            "raybcgd.data.dataset": ("Dataset",),
            "raybcgd.data.partition": ("Partitioner",),
            "raybcgd.errors": ("ConfigError", "RunError"),
            "raybcgd.experiment": ("run",),
            "raybcgd.record.rounds": ("RoundRecord",),
            "raybcgd.opened": ("Run", "figures"),
            "raybcgd.results": ("RunResult",),
            "raybcgd.wire.codecs": ("Codec",),
        },
    )
