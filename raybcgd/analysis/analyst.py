"""The analysis of a run, from its last checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raybcgd.analysis.cka import mean_similarity, model_cka
from raybcgd.analysis.conformal import Conformal, conformal, probabilities_of
from raybcgd.analysis.settings import AnalysisConfig
from raybcgd.client.host import ClientHost
from raybcgd.config import load_config
from raybcgd.data.dataset import Dataset
from raybcgd.data.normalise import normalise
from raybcgd.errors import ConfigError
from raybcgd.messages import ClientTask
from raybcgd.model.flat import FlatModel
from raybcgd.plan.history import History
from raybcgd.problem import Data, Problem, prepare
from raybcgd.randomness import stream
from raybcgd.record.checkpoint import Checkpoints, Position
from raybcgd.server.loop import identity
from raybcgd.server.round import plan_round
from raybcgd.storage import RunFolder


def analyse_run(
    folder: str | Path,
    settings: AnalysisConfig | None = None,
    *,
    module: nn.Module | None = None,
    dataset: Dataset | None = None,
) -> dict[str, Any]:
    """Analyse the run in a folder; a module and a data set of one's own are passed again, as to `run`."""
    config = load_config(RunFolder(Path(folder)).config)
    problem, data = prepare(config, module, dataset)
    return Analyst(problem, data, RunFolder(Path(folder))).report(settings or config.analysis or AnalysisConfig())


class Analyst:
    """Looks at the last checkpoint of a run, in this process, and changes nothing of it."""

    def __init__(self, problem: Problem, data: Data, folder: RunFolder) -> None:
        config = problem.config
        self._problem, self._data = problem, data
        self._address = config.checkpoint.address or str(folder.path)
        found = Checkpoints(self._address, config.checkpoint.keep, identity(problem, data)).newest()
        if found is None:
            raise ConfigError(
                f"{self._address} holds no checkpoint to analyse; run with checkpoint.every of at least 1"
            )
        self._position: Position = found
        self._device = torch.device("cpu")
        self._flat = FlatModel(problem.module(), problem.layout, problem.dtype, self._device)
        kind = type(config.algorithm.server_init(self._flat.vector, len(data.partitions)))
        self.server = kind(**{name: torch.from_numpy(array.copy()) for name, array in found.server.items()})

    def report(self, settings: AnalysisConfig) -> dict[str, Any]:
        """Everything that the settings ask for, as plain values."""
        sets = self.conformal(settings.conformal_level, settings.calibration_share)
        result: dict[str, Any] = {"rounds": self._position.rounds, "conformal": sets._asdict()}
        if settings.cka_clients > 1:
            matrices = self.cka(settings.cka_clients, settings.cka_samples)
            result["cka"] = {layer: mean_similarity(matrix) for layer, matrix in matrices.items() if len(matrix) > 1}
        return result

    def client_models(self, most: int) -> list[Tensor]:
        """The whole models at which up to `most` clients of the next round would arrive."""
        problem, algorithm = self._problem, self._problem.config.algorithm
        plan = plan_round(problem, self._data, self._history(), self._position.rounds)
        host = ClientHost(problem, self._data, f"{self._address}/states", self._device)
        ledger = self._position.ledger
        tasks = [ClientTask(member.client, member.block, ledger[member.client]) for member in plan.cohort[:most]]
        down = algorithm.broadcast(self.server, plan.rnd)
        with _one_thread():
            return host.local_models(tasks, {name: v.numpy() for name, v in down._asdict().items()}, plan.orders)

    def cka(self, most: int, samples: int) -> dict[str, Tensor]:
        """For every layer, the CKA between the models of up to `most` clients on some test samples: a matrix."""
        plan = plan_round(self._problem, self._data, self._history(), self._position.rounds)
        rows = self._data.test_rows[plan.orders.data_phase]
        chosen = np.sort(stream(self._problem.config.seed, "cka").permutation(rows)[:samples])
        return model_cka(self._flat, self.client_models(most), self._inputs(chosen))

    def conformal(self, level: float, calibration_share: float) -> Conformal:
        """Prediction sets of the global model (of each data phase's model on its own test data)."""
        models = self._problem.config.algorithm.models(self.server)
        parts = []
        for phase, rows in enumerate(self._data.test_rows):
            parts.append(self._probabilities(models[phase] if len(models) > 1 else models[0], rows))
        rows = np.concatenate(self._data.test_rows)
        rng = stream(self._problem.config.seed, "calibration")
        calibration = np.zeros(len(rows), dtype=bool)
        calibration[rng.permutation(len(rows))[: min(max(1, round(calibration_share * len(rows))), len(rows) - 1)]] = (
            True
        )
        return conformal(np.concatenate(parts), self._data.dataset.test.targets[rows], calibration, level)

    @torch.no_grad()
    def _probabilities(self, model: Tensor, rows: np.ndarray) -> np.ndarray:
        self._flat.module.eval()
        self._flat.vector.copy_(model)
        size = self._problem.config.evaluation.batch_size
        runs = [rows[start : start + size] for start in range(0, len(rows), size)]
        return torch.cat([probabilities_of(self._flat.module(self._inputs(run))) for run in runs]).double().numpy()

    def _inputs(self, rows: np.ndarray) -> Tensor:
        dataset = self._data.dataset
        return normalise(torch.from_numpy(dataset.test.inputs[rows]), dataset, self._problem.dtype)

    def _history(self) -> History:
        problem = self._problem
        if self._position.history:
            return History.from_arrays(self._position.history)
        return History.fresh(problem.layout, problem.config.blocks, problem.config.cohort.assignment == "need")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute as hosts do, so that the bits are theirs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
