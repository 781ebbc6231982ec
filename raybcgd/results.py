"""The result of a run, as `run` returns it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import nn

from raybcgd.model.flat import FlatModel
from raybcgd.problem import Problem
from raybcgd.record.rounds import RoundLog, RoundRecord
from raybcgd.record.summary import accuracies, losses_of, read_summary
from raybcgd.record.table import round_rows
from raybcgd.storage import RunFolder, write_atomic


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of a run."""

    records: tuple[RoundRecord, ...]
    summary: dict[str, Any]
    model: nn.Module
    """The trained model, on the CPU and in evaluation mode. Call `model.train()` to train it further."""
    folder: Path

    def frame(self) -> Any:
        """Return one row per round as a pandas.DataFrame."""
        return frame_of(self.records)

    def __repr__(self) -> str:
        return f"RunResult({headline_of(self.summary['algorithm'], self.records, self.folder)})"


def frame_of(records: Sequence[RoundRecord]) -> Any:
    """Return the rounds of a run as a pandas.DataFrame."""
    import pandas  # a dependency of Ray Tune; slow to import

    return pandas.DataFrame(round_rows(records))


def headline_of(label: str, records: Sequence[RoundRecord], folder: Path) -> str:
    """Return a one-line summary of a run."""
    values = accuracies(records)
    losses = losses_of(records)
    quality = f"accuracy {values[-1]:.1%}, " if values else f"loss {losses[-1]:.4g}, " if losses else ""
    upload = records[-1].traffic.upload_d_total if records else 0.0
    return f"{label}, {len(records)} rounds, {quality}{upload:.1f} d uploaded, {folder}"


def finished_run(folder: RunFolder, problem: Problem) -> RunResult:
    """Read the result of a finished run from its folder."""
    module = problem.module()
    # Integer buffers, such as batch counts, are not part of the weights.
    module.load_state_dict(load(folder.final.read_bytes()), strict=False)
    return RunResult(tuple(RoundLog(folder.rounds)), read_summary(folder.summary), module.eval(), folder.path)


def save_models(folder: RunFolder, flat: FlatModel, models: Sequence[np.ndarray]) -> None:
    """Write the weights by their names in the module's state dict. Models after the first get a numbered prefix."""
    tensors = {}
    for number, model in enumerate(models):
        prefix = "" if number == 0 else f"model{number}."
        named = flat.named(torch.from_numpy(model.copy()))  # arrays from Ray are read-only
        tensors.update({prefix + name: tensor.contiguous() for name, tensor in named.items()})
    write_atomic(folder.final, save(tensors))
