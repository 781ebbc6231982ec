"""[Ray] A grid of settings with Ray Tune: every point a run of its own, as many at once as the cluster has room for."""

import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import ray
import ray.tune
from rich.table import Table

from raybcgd.compare.comparison import open_folder
from raybcgd.compare.settings import CompareConfig, Variant
from raybcgd.config import Config, make_config
from raybcgd.config.files import override, vary
from raybcgd.data.dataset import Dataset
from raybcgd.data.sources import load
from raybcgd.engine.ray.coordinator import cluster
from raybcgd.engine.ray.placement import host_count, host_needs
from raybcgd.errors import ConfigError, RunError
from raybcgd.experiment import RunResult, run, write_whole
from raybcgd.problem import prepare
from raybcgd.record.standing import standing
from raybcgd.storage import new_folder

Metric = Literal["last_tenth_accuracy", "best_accuracy", "final_accuracy", "upload_d_to_target"]
"""By what the best is chosen; of uploads the smallest is best."""


@dataclass(frozen=True)
class Point:
    """A point of the grid and what came of it."""

    number: int
    settings: dict[str, Any]
    """By key, such as "algorithm.lr"."""
    results: dict[str, Any]
    """The run's summary and standing; empty where it failed."""
    error: str | None = None

    @property
    def label(self) -> str:
        return ", ".join(f"{key.rpartition('.')[2]} = {value}" for key, value in self.settings.items())

    def value(self, metric: Metric) -> float | None:
        """What the point is judged by; None where it failed or never got there."""
        return self.results.get(metric)


@dataclass(frozen=True)
class Sweep:
    """What a sweep leaves behind."""

    points: tuple[Point, ...]
    metric: Metric
    best: Point
    config: Config
    """The best point's."""
    folder: Path
    """`best.toml`, `sweep.json`, and a folder a run (on the node where it ran)."""


def sweep(
    config: Config,
    grid: Mapping[str, Iterable[Any]],
    *,
    metric: Metric = "last_tenth_accuracy",
    dataset: Dataset | None = None,
    out: str | Path | None = None,
    observe: Callable[[Point], None] | None = None,
) -> Sweep:
    """Run every combination of the grid's values, and write the config of the best to `best.toml`.

    A trial asks for what `[hosts]` says of one host, and runs the local engine there. All read one copy of the data.
    """
    dataset = dataset or load(config.data)
    points = list(_points(grid))
    configs = [_at(config, point) for point in points]
    for each in configs:
        prepare(each, dataset=dataset)  # what is wrong with the last is said before the first has run
    folder = open_folder(Path(out) if out is not None else new_folder("sweep")).absolute()
    with cluster(config.hosts.address):
        done = _run_all(configs, points, dataset, folder, observe)
    return _report(done, configs, metric, folder)


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """`algorithm.lr=0.01,0.03` as a key and its values, which are TOML's; bare words are strings."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, raw = (part.strip() for part in text.partition("="))
        try:
            values = tomllib.loads(f"values = [{raw}]")["values"]
        except tomllib.TOMLDecodeError:
            values = [word.strip() for word in raw.split(",")]
        if not equals or not key or not values:
            raise ConfigError(f"--grid {text}: write it as key=value,value, such as --grid algorithm.lr=0.01,0.03")
        if key in grid:
            raise ConfigError(f"--grid {key} is given twice; put all its values into one")
        grid[key] = values
    return grid


def _points(grid: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, Any]]:
    if not grid:
        raise ConfigError("a sweep needs a grid; give one such as --grid algorithm.lr=0.01,0.03")
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _at(config: Config, settings: Mapping[str, Any]) -> Config:
    """The config at a point of the grid. A method's settings carry over to another method that has them."""
    algorithm = {key: value for key, value in settings.items() if key.startswith("algorithm.")}
    others = [f"{key}={json.dumps(value)}" for key, value in settings.items() if key not in algorithm]
    base = make_config(override(tomllib.loads(config.to_toml()), others)) if others else config
    variant = Variant(algorithm={key.removeprefix("algorithm."): value for key, value in algorithm.items()})
    return vary(base, variant).model_copy(update={"compare": config.compare})


def _run_all(
    configs: list[Config],
    points: list[dict[str, Any]],
    dataset: Dataset,
    folder: Path,
    observe: Callable[[Point], None] | None,
) -> list[Point]:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    needs = host_needs(configs[0].hosts, nodes)
    host_count(configs[0].hosts.model_copy(update={"count": None, "clients_per_host": None}), needs, nodes, 1, 1)
    trial = ray.tune.with_parameters(_trial, configs=configs, dataset=dataset, folder=folder, gpu=needs.num_gpus > 0)
    asks = {"cpu": needs.num_cpus, "gpu": needs.num_gpus}
    # Relative paths in a config, such as a weights file's, are relative to where the sweep was started.
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # the runs keep their own logs
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # it would go on as if the sweep had come to its end
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the other output does not know how to be silent
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(trial, {k: v for k, v in asks.items() if v}),
        param_space={"number": ray.tune.grid_search(list(range(len(configs))))},
        run_config=ray.tune.RunConfig(
            name="tune", storage_path=str(folder), verbose=0, callbacks=[_Watch(points, observe)]
        ),
    )
    done = {}
    results = tuner.fit()
    for result in (results[k] for k in range(len(results))):
        number = (result.config or {})["number"]
        done[number] = _point(number, points[number], result.metrics or {}, result.error)
    return [done[number] for number in sorted(done)]


def _trial(
    choice: Mapping[str, Any], configs: list[Config], dataset: Dataset, folder: Path, gpu: bool
) -> dict[str, Any]:
    """In a trial's process: one run. What it returns is Tune's last word on the trial."""
    number = int(choice["number"])
    config = configs[number]
    hosts = config.hosts.model_copy(update={"device": "gpu" if gpu else "cpu"})
    here = config.model_copy(update={"engine": "local", "hosts": hosts, "compare": None})
    try:
        result = run(here, dataset=dataset, out=folder / f"{number:03d}")
    except RunError as error:  # a rate at which the run diverges is a result, too
        return {"failed": str(error)}
    return {"results": json.dumps(_results(config, result))}


def _results(config: Config, result: RunResult) -> dict[str, Any]:
    target = (config.compare or CompareConfig()).target
    return {**result.summary, **standing("", "", result.records, result.summary, target)._asdict(), "target": target}


def _point(number: int, settings: dict[str, Any], metrics: Mapping[str, Any], error: Exception | None) -> Point:
    if error is not None:
        return Point(number, settings, {}, str(error).strip().split("\n")[-1])
    if "results" not in metrics:
        return Point(number, settings, {}, metrics.get("failed", "it was stopped before its end"))
    return Point(number, settings, json.loads(metrics["results"]))


class _Watch(ray.tune.Callback):
    """Tells of every point as it ends."""

    def __init__(self, points: list[dict[str, Any]], observe: Callable[[Point], None] | None) -> None:
        self._points, self._observe = points, observe

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tune's name for it."""
        if self._observe is not None:
            number = trial.config["number"]
            self._observe(_point(number, self._points[number], trial.last_result, None))


def _report(points: list[Point], configs: list[Config], metric: Metric, folder: Path) -> Sweep:
    sign = -1 if metric == "upload_d_to_target" else 1
    judged = [(sign * value, point) for point in points if (value := point.value(metric)) is not None]
    lines = [
        {**point.settings, **point.results, "error": point.error, "folder": f"{point.number:03d}"} for point in points
    ]
    write_whole(folder / "sweep.json", json.dumps({"metric": metric, "points": lines}, indent=2) + "\n")
    if not judged:
        reasons = {point.error for point in points if point.error} or {f"no run has a {metric}"}
        raise RunError(f"no point of the sweep has come to a result: {'; '.join(sorted(reasons))}")
    best = max(judged, key=lambda pair: pair[0])[1]
    write_whole(folder / "best.toml", configs[best.number].to_toml())
    return Sweep(tuple(points), metric, best, configs[best.number], folder)


def sweep_table(result: Sweep) -> Table:
    """A sweep for the terminal."""
    keys = list(result.best.settings)
    target = result.best.results["target"]
    table = Table(title=f"{len(result.points)} runs, judged by {result.metric}", title_justify="left")
    for heading in (*keys, "last tenth", "best", f"d to {100 * target:g} %"):
        table.add_column(heading, justify="right")
    for point in result.points:
        cells = [str(point.settings[key]) for key in keys]
        if point.error is not None:
            cells += ["failed", "", ""]
        else:
            upload = point.results["upload_d_to_target"]
            cells += [_percent(point.results[name]) for name in ("last_tenth_accuracy", "best_accuracy")]
            cells.append("never" if upload is None else f"{upload:.1f}")
        table.add_row(*cells, style="bold" if point is result.best else None)
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
