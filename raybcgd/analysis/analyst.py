"""Analyse a run from its last checkpoint."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raybcgd.analysis.cka import mean_similarity, model_cka
from raybcgd.analysis.conformal import Conformal, conformal, probabilities_of
from raybcgd.analysis.settings import AnalysisConfig
from raybcgd.client.host import ClientHost, one_thread
from raybcgd.config import load_run_config
from raybcgd.data.dataset import Dataset
from raybcgd.data.normalise import normalise
from raybcgd.errors import ConfigError
from raybcgd.messages import ClientTask
from raybcgd.model.outputs import logits_of
from raybcgd.problem import Data, Problem, prepare
from raybcgd.randomness import stream
from raybcgd.record.checkpoint import Checkpoints
from raybcgd.server.loop import identity, initial_state, restored_state
from raybcgd.server.round import RoundPlan, plan_round
from raybcgd.storage import RunFolder


def analyse_run(
    folder: str | Path,
    settings: AnalysisConfig | None = None,
    *,
    module: nn.Module | None = None,
    dataset: Dataset | tuple[Any, ...] | None = None,
    partition: Any = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Return the analysis of the run in a folder. Pass the same module, data set and partition as to `run`, if any.

    With `trust`, the folder's config may name code outside raybcgd, which is imported.
    """
    run_folder = RunFolder(Path(folder))
    config = load_run_config(run_folder, trust=trust, call="analyse_run")
    problem, data = prepare(config, module, dataset, partition)
    return Analyst(problem, data, run_folder).report(settings or config.analysis or AnalysisConfig())


class Analyst:
    """Analyses the last checkpoint of a run in this process. It changes no file."""

    def __init__(self, problem: Problem, data: Data, folder: RunFolder) -> None:
        config = problem.config
        self._problem, self._data = problem, data
        self._address = config.checkpoint.address or str(folder.path)
        found = Checkpoints(
            self._address, config.checkpoint.keep, identity(problem, data), problem.state_layout
        ).newest()
        if found is None:
            raise ConfigError(f"{self._address} has no checkpoint to analyse; run with checkpoint.every > 0")
        self.state = restored_state(initial_state(problem, data), found)
        self._flat = problem.flat_model()

    def report(self, settings: AnalysisConfig) -> dict[str, Any]:
        """Return the results that the settings ask for, as plain values."""
        sets = self.conformal(settings.conformal_levels, settings.calibration_share)
        result: dict[str, Any] = {"rounds": self.state.rounds, "conformal": [one._asdict() for one in sets]}
        if settings.cka_clients > 1:
            matrices = self.cka(settings.cka_clients, settings.cka_samples)
            result["cka"] = {layer: mean_similarity(matrix) for layer, matrix in matrices.items() if len(matrix) > 1}
        return result

    def client_models(self, limit: int) -> list[Tensor]:
        """Return the local models of up to `limit` clients after the next round's training."""
        state, plan = self.state, self._plan()
        host = ClientHost(self._problem, self._data, f"{self._address}/states", torch.device("cpu"))
        tasks = [ClientTask(member.client, member.block, state.ledger[member.client]) for member in plan.cohort[:limit]]
        down = self._problem.algorithm.broadcast(state.server, plan.rnd)
        with one_thread():
            return host.local_models(tasks, {name: v.numpy() for name, v in down._asdict().items()}, plan.orders)

    def cka(self, limit: int, samples: int) -> dict[str, Tensor]:
        """Return a matrix per layer: the CKA between the local models of up to `limit` clients on test samples."""
        rows = self._data.test_rows[self._plan().orders.data_phase]
        chosen = np.sort(stream(self._problem.config.seed, "cka").permutation(rows)[:samples])
        return model_cka(self._flat, self.client_models(limit), self._inputs(chosen))

    def _plan(self) -> RoundPlan:
        return plan_round(self._problem, self._data, self.state.history, self.state.rounds)

    def conformal(self, levels: Sequence[float], calibration_share: float) -> list[Conformal]:
        """Evaluate prediction sets of the global model, or of each data phase's model on the phase's test data.

        All levels share the probabilities and the calibration samples.
        """
        models, test_rows = cycle(self._problem.algorithm.models(self.state.server)), self._data.test_rows
        parts = [self._probabilities(model, rows) for model, rows in zip(models, test_rows, strict=False)]
        rows = np.concatenate(test_rows)
        count = min(max(1, round(calibration_share * len(rows))), len(rows) - 1)
        chosen = stream(self._problem.config.seed, "calibration").permutation(len(rows))[:count]
        calibration = np.isin(np.arange(len(rows)), chosen)
        probabilities, targets = np.concatenate(parts), self._data.dataset.test.targets[rows]
        return [conformal(probabilities, targets, calibration, level) for level in levels]

    @torch.no_grad()
    def _probabilities(self, model: Tensor, rows: np.ndarray) -> np.ndarray:
        self._flat.module.eval()
        self._flat.vector.copy_(model)
        size = self._problem.config.evaluation.batch_size
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        outputs = (logits_of(self._flat.module(self._inputs(batch))) for batch in batches)
        return torch.cat([probabilities_of(logits) for logits in outputs]).double().numpy()

    def _inputs(self, rows: np.ndarray) -> Tensor:
        dataset = self._data.dataset
        return normalise(torch.from_numpy(dataset.test.inputs[rows]), dataset, self._problem.dtype)
