"""The distance of a model to the optimum of a convex problem, and of c to the mean of the clients' c_i."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from raybcgd.config import Config
from raybcgd.data.dataset import Dataset
from raybcgd.data.normalise import normalise
from raybcgd.problem import Data, prepare
from raybcgd.record.checkpoint import Checkpoints
from raybcgd.record.states import SegmentFolder
from raybcgd.server.loop import identity


def to_optimum(config: Config, dataset: Dataset, folder: Path) -> dict[str, Any]:
    """Return f(x) - f* and |c - mean c_i| / |mean c_i| at the end of a run of logistic regression."""
    problem, data = prepare(config, None, dataset)
    layout = problem.state_layout
    position = Checkpoints(str(folder), 2, identity(problem, data), layout).newest()
    assert position is not None, "a run saves its last round"
    objective = _Objective(data, float(config.algorithm.weight_decay))
    gap = objective(np.asarray(position.server["x"]))[0] - objective.minimum()
    found: dict[str, Any] = {"gap": float(f"{gap:.4g}")}
    if "c" in position.server:
        trained = position.ledger.clients.tolist()
        states = SegmentFolder(str(folder / "states"), layout)
        rows = states.read([(client, position.ledger[client]) for client in trained])
        mean = layout.views(rows)["algorithm.c"].sum(axis=0) / problem.clients
        drift = np.linalg.norm(position.server["c"] - mean) / np.linalg.norm(mean)
        found["drift"] = float(f"{drift:.4g}")
    return found


class _Objective:
    """The mean of the clients' regularised logistic losses."""

    def __init__(self, data: Data, weight_decay: float) -> None:
        (owners,) = data.partitions
        train = data.dataset.train.take(owners.indices)
        inputs = normalise(torch.from_numpy(train.inputs), data.dataset, torch.float64).flatten(1).numpy()
        self._rows = np.hstack([inputs, np.ones((len(inputs), 1))])
        self._signs = 2.0 * train.targets - 1
        sizes = owners.sizes
        self._weights = np.concatenate([np.full(size, 1 / (len(sizes) * size)) for size in sizes])
        self._decay = weight_decay

    def __call__(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        margins = self._signs * (self._rows @ w)
        value = self._weights @ np.logaddexp(0, -margins) + self._decay / 2 * w @ w
        slope = -self._weights * self._signs * np.exp(-np.logaddexp(0, margins))
        return float(value), self._rows.T @ slope + self._decay * w

    def minimum(self) -> float:
        """Return f*."""
        start, options = np.zeros(self._rows.shape[1]), {"ftol": 0, "gtol": 1e-13, "maxiter": 20000, "maxfun": 40000}
        return float(minimize(self, start, jac=True, method="L-BFGS-B", options=options).fun)
