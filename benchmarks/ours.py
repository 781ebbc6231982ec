"""raybcgd as a contestant: one run per turn, on a Ray cluster that stays up."""

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.bundle import Bundle
from benchmarks.contestant import Turn
from benchmarks.workloads import Workload
from raybcgd.data.dataset import Dataset
from raybcgd.experiment import run


class Ours:
    """A method on a workload. The run of each turn starts from the initial model."""

    def __init__(self, name: str, workload: Workload, dataset: Dataset, bundle: Bundle, algorithm: str, epochs: int):
        self.name, self._workload, self._dataset, self._bundle = name, workload, dataset, bundle
        self._algorithm, self._epochs = algorithm, epochs

    def turn(self, rounds: int) -> Turn:
        """Run rounds and return the time from the end of one to the end of the next."""
        # Two more rounds: the first has no predecessor, and no later round overlaps the evaluation of the last one.
        config = self._workload.config(self._algorithm, self._epochs, rounds + 2)
        with tempfile.TemporaryDirectory() as folder:
            result = run(config, dataset=self._dataset, out=Path(folder) / "run", progress=False)
        ends = [record.timing.finished_at for record in result.records[:-1]]
        return Turn(np.diff(np.array(ends, dtype=float)).tolist(), self._bundle.loss(result.model))

    def close(self) -> None:
        """Do nothing: the run has ended."""
