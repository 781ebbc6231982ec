"""`Run.open`: any run, finished or not, read back from its folder."""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import load
from torch import Tensor, nn

from raybcgd.config import Config, load_run_config, resume_command, run_tables
from raybcgd.config.objects import ObjectsConfig
from raybcgd.errors import ConfigError
from raybcgd.model.zoo import build
from raybcgd.record.rounds import RoundRecord
from raybcgd.record.summary import read_summary
from raybcgd.report.page import draw
from raybcgd.report.runs import Run as ReportedRun
from raybcgd.report.runs import read_runs
from raybcgd.report.style import drawing
from raybcgd.results import frame_of, headline_of
from raybcgd.storage import RunFolder


class Run:
    """A run in a folder. Reading it executes no code that its config names."""

    def __init__(self, reported: ReportedRun) -> None:
        self._reported, self._files = reported, RunFolder(reported.folder)

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """Open the folder of a run with at least one round."""
        if not Path(folder).is_dir():
            raise ConfigError(f"{folder}: no such folder; pass the folder of a run")
        if not RunFolder(Path(folder)).config.exists():
            raise ConfigError(f"{folder} holds no run (no config.toml); use Run.open_all for a comparison or a sweep")
        return cls(read_runs([Path(folder)])[0])

    @classmethod
    def open_all(cls, *folders: str | Path) -> "list[Run]":
        """Open all runs in the folders of runs, comparisons or sweeps."""
        return [cls(reported) for reported in read_runs([Path(folder) for folder in folders])]

    @property
    def label(self) -> str:
        """The name of the run in a comparison, or of its method."""
        return self._reported.label

    @property
    def folder(self) -> Path:
        return self._reported.folder

    @property
    def records(self) -> tuple[RoundRecord, ...]:
        """All measurements, per round."""
        return self._reported.records

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """The content of `summary.json`. None if the run has not finished."""
        return read_summary(self._files.summary) if self._files.summary.exists() else None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The config as nested tables. Nothing that it names is imported."""
        return run_tables(self._files)

    def config(self, trust: bool = False) -> Config:
        """Return the config. With `trust`, import code outside raybcgd that it names."""
        return load_run_config(self._files, trust=trust, call="run.config")

    def frame(self) -> Any:
        """Return one row per round as a pandas.DataFrame."""
        return frame_of(self.records)

    def curve(self, column: str = "accuracy") -> Any:
        """Return a column of `frame` as a pandas.Series, indexed by round from 1, without missing values."""
        frame = self.frame()
        if column not in frame:
            raise ConfigError(f"{column} is not measured; use one of {', '.join(frame.columns)}")
        return frame.set_index("round", drop=False)[column].dropna()

    def weights(self) -> dict[str, Tensor]:
        """Return the trained weights by their names in the module's state dict.

        If a method trains one model per data phase, those after the first have a prefix, such as `model1.`.
        """
        if not self._files.final.exists():
            raise ConfigError(f"{self.folder} has no final.safetensors: {self._unfinished()}")
        return load(self._files.final.read_bytes())

    def _unfinished(self) -> str:
        """Return why there are no weights, and what to do: a command, or a Python call if the run used objects."""
        if (reason := self._files.divergence) is None:
            return f"the run has not finished; resume it with `{resume_command(self.settings, self._files)}`"
        objects, comparison = ObjectsConfig.model_validate(self.settings.get("objects", {})), self._reported.comparison
        again = f"{reason}; a repeat would diverge again: change its settings, then"
        if comparison is None:
            how = f"run(config, {objects.arguments})" if objects.arguments else "raybcgd train CONFIG"
            return f"{again} start a new run with `{how}`"
        how = f"raybcgd compare CONFIG --out {comparison} --resume auto"
        how = f"compare(config, {objects.arguments}, out=…, resume=True)" if objects.arguments else how
        return f"{again} continue the comparison with `{how}`"

    def model(self, module: nn.Module | None = None, trust: bool = False, phase: int = 0) -> nn.Module:
        """Return the trained model, in evaluation mode. With `trust`, import code outside raybcgd that builds it.

        If the run was started with a module, pass a module of the same class; the weights are loaded into it. `phase`
        selects the model of a method that trains one per data phase.
        """
        weights = _of_phase(self.weights(), phase)
        if module is None:
            given = self.settings.get("objects", {}).get("module")
            if given is not None:
                raise ConfigError(f"the run in {self.folder} was started with module={given}; call run.model(module)")
            shape = (self.summary or {}).get("input_shape")
            if shape is None or "model" not in self.settings:
                raise ConfigError(f"{self.folder} does not say how to build its model; call run.model(module)")
            config = load_run_config(self._files, trust=trust, call="run.model")
            module = build(config.model, tuple(shape), (self.summary or {})["classes"], config.seed)
        present = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        if not present.keys() >= weights.keys():
            missing = ", ".join(sorted(weights.keys() - present.keys())[:3])
            raise ConfigError(f"{self.folder}: the weights {missing} are not in this module; pass the run's module")
        for name in (name for name in present if name in weights):
            here, there = tuple(present[name].shape), tuple(weights[name].shape)
            if here != there:
                found = f"{name} has shape {here} in this module and {there} in the run"
                raise ConfigError(f"{self.folder}: {found}; pass a module of the same size")
        module.load_state_dict(weights, strict=False)  # integer buffers are not part of the weights
        return module.eval()

    def figures(self, target: float | None = None) -> dict[str, Any]:
        """Return the figures of the run's report by name, such as "accuracy", as matplotlib figures."""
        return figures([self], target)

    def __repr__(self) -> str:
        return f"Run({headline_of(self.label, self.records, self.folder)})"


def _of_phase(weights: dict[str, Tensor], phase: int) -> dict[str, Tensor]:
    """Return the weights of one model, without its prefix; see `Run.weights`."""
    prefixes = {name: re.match(r"model\d+\.|", name)[0] for name in weights}  # type: ignore[index]
    prefixes = {name: prefix if name.removeprefix(prefix) in weights else "" for name, prefix in prefixes.items()}
    chosen = f"model{phase}." if phase else ""
    if chosen not in prefixes.values():
        raise ConfigError(f"phase = {phase}: the run has no such model; use 0 to {len(set(prefixes.values())) - 1}")
    return {name.removeprefix(chosen): weights[name] for name, prefix in prefixes.items() if prefix == chosen}


def figures(runs: Sequence[Run], target: float | None = None) -> dict[str, Any]:
    """Return the matplotlib figures of a report about some runs, by name, such as "accuracy".

    `target` is the accuracy that they mark. Default: that of the first run.
    """
    reported = [run._reported for run in runs]
    with drawing() as new:
        return draw(new, reported, target or reported[0].config.metrics.target)
