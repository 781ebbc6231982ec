"""[Ray] Grid search with Ray Tune: one run per point, as many at a time as fit on the cluster."""

import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import ray
import ray.tune
from rich.table import Table

from raybcgd.client.device import accelerator, why_none
from raybcgd.config import Config, make_config
from raybcgd.config.files import assign, tables_of
from raybcgd.data.dataset import Dataset
from raybcgd.data.sources import load_once
from raybcgd.engine.demand import demand
from raybcgd.engine.ray.cluster import cluster, node_resources
from raybcgd.engine.ray.placement import host_count, host_needs
from raybcgd.errors import ConfigError, DivergedError, RunError, last_line
from raybcgd.experiment import changed_settings, run
from raybcgd.problem import check_compare_target, prepare, with_partition
from raybcgd.record.rounds import RoundLog, RoundRecord
from raybcgd.record.summary import Ranking, read_summary, standing
from raybcgd.report.points import showing_points
from raybcgd.report.progress import Display, as_display
from raybcgd.report.sweeps import Point, points_table, ranked
from raybcgd.report.tables import percent, shown_loss
from raybcgd.server.budget import expected_rounds
from raybcgd.storage import RunFolder, check_holds, make_folder, new_folder, write_atomic

_FIXED = ("data.validation_share", "data.evaluate_on")
"""Settings that are the same for all points."""
_RETRIES = 2
"""How many times a trial is restarted after it fails or is lost, for example with its node."""

DEFAULT_VALIDATION_SHARE = 0.1
"""The fraction of the training samples that a sweep holds out if `data.validation_share` is not set."""


@dataclass(frozen=True)
class Sweep:
    """The result of a sweep."""

    points: tuple[Point, ...]
    metric: Ranking
    best: Point
    config: Config
    """The config of the best point, which evaluates on test data if the original config does."""
    validation_share: float
    """The fraction of the training samples that was held out to choose the best point."""
    folder: Path
    """Contains `best.toml`, `sweep.json` and one folder per run. A run's folder is on the node where it ran."""


def sweep(
    config: Config,
    grid: Mapping[str, Iterable[Any]],
    *,
    metric: Ranking | None = None,
    dataset: Dataset | tuple[Any, ...] | None = None,
    partition: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
    observe: Callable[[Point], None] | None = None,
    progress: bool | Display = True,
) -> Sweep:
    """Run every combination of the grid's values, and write the config of the best point to `best.toml`.

    The choice never sees the test data: the points are evaluated on validation data, which is `data.validation_share`
    of the training samples, by default a tenth. `metric` ranks the points; the default is the mean accuracy over the
    last tenth of the rounds, or the mean loss of a regression. A trial requests the resources of one host in `[hosts]`
    and uses the local engine. Trials share the data. A point that diverges has no rank. If a point fails for another
    reason, such as a lost node or a full disk, there is no best point: the other points run, then the sweep raises an
    error. With `resume`, finished points in `out` are read, and unfinished ones continue. `observe` is called with each
    point that ends, unless its trial crashes. `dataset` and `partition` are as in `run`.
    """
    for key in _FIXED:
        if key in grid:
            raise ConfigError(
                f"the grid has {key}: points that are evaluated on different samples cannot be compared; remove it"
            )
    display, points = as_display(progress), list(_points(grid))
    tuned = _on_validation(config)
    with display.stage("reading the data"):
        given = load_once(tuned.data, dataset, partition)
    trials = [make_config(assign(tables_of(tuned), point)) for point in points]
    with display.stage(f"checking {len(points)} points"):  # report an error in any config before the first run
        problems = [prepare(each, **given)[0] for each in trials]
    check_compare_target(config, problems[0])
    metric = _ranking(metric, problems[0].regression)
    folder = (Path(out) if out is not None else new_folder("sweep")).absolute()
    if not (resume and folder.is_dir()):
        make_folder(folder, "sweep")
    else:
        check_holds(folder, "sweep")
        _check_kept(folder, [problem.config for problem in problems])
    folders = [_run_folder(folder, number).path for number in range(len(points))]
    with ExitStack() as stack:
        with display.stage("starting Ray"):
            stack.enter_context(cluster(config.hosts.address))
        shown = stack.enter_context(showing_points(display, folders, [*map(expected_rounds, problems)]))

        def observed(point: Point) -> None:
            line = f"{point.label}: {point.error or f'validation {_quality(point)}'}"
            shown.end(point.number, line, failed=point.error is not None)
            if observe is not None:
                observe(point)

        done = _run_all(trials, points, given, folder, observed)
    configs = [
        with_partition(make_config(assign(tables_of(config), point)), problem.config.data.partition)
        for point, problem in zip(points, problems, strict=True)
    ]
    return _report(done, configs, metric, tuned.data.validation_share, folder)


def _ranking(metric: Ranking | None, regression: bool) -> Ranking:
    """Return how the points are ranked. A regression has losses, but no accuracies."""
    if not regression:
        return metric or "last_tenth_accuracy"
    if metric not in (None, "last_tenth_loss", "best_loss"):
        raise ConfigError(
            f"the metric {metric} needs labels, but the targets are floats (regression); use last_tenth_loss or "
            "best_loss"
        )
    return metric or "last_tenth_loss"


def _on_validation(config: Config) -> Config:
    """Return the config for evaluation on held-out training samples, with `compare.target`, if set, as its target."""
    share = config.data.validation_share or DEFAULT_VALIDATION_SHARE
    data = config.data.model_copy(update={"validation_share": share, "evaluate_on": "validation"})
    return config.with_compare_target().model_copy(update={"data": data})


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Return the values of each key from texts such as `algorithm.lr=0.01,0.03`. Values are TOML or bare words."""
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
            raise ConfigError(f"--grid {key} is given twice; list all its values in one --grid")
        grid[key] = values
    return grid


def _points(grid: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, Any]]:
    if not grid:
        raise ConfigError("the grid is empty; add values of a setting, such as --grid algorithm.lr=0.01,0.03")
    for key, values in grid.items():
        found = list(values)
        for value in (value for k, value in enumerate(found) if value in found[:k]):
            raise ConfigError(f"the grid has {key} = {value} twice; remove one of them")
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _run_all(
    configs: list[Config],
    points: list[dict[str, Any]],
    given: dict[str, Any],
    folder: Path,
    observe: Callable[[Point], None],
) -> list[Point]:
    """Run all points on the `given` data set and partition."""
    nodes, hosts = node_resources(), configs[0].hosts
    needs = host_needs(hosts, nodes, demand(*prepare(configs[0], **given)))
    # This raises if no node has room for a host, unless hosts.max_count says that an autoscaler can add nodes.
    host_count(hosts.model_copy(update={"count": None, "clients_per_host": None}), needs, nodes, 1, 1)
    done = _finished_points(configs, points, given, folder)
    for point in done.values():
        observe(point)
    waiting = [number for number in range(len(points)) if number not in done]
    if waiting:
        trial = ray.tune.with_parameters(_trial, configs=configs, given=given, folder=folder, gpu=needs.num_gpus > 0)
        resources = {"cpu": needs.num_cpus, "gpu": needs.num_gpus, "memory": needs.memory_bytes}
        results = _tuner(trial, resources, waiting, folder, _Observer(points, observe)).fit()
        for result in (results[k] for k in range(len(results))):
            number = (result.config or {})["number"]
            done[number] = _point(number, points[number], result.metrics or {}, result.error)
    return [done[number] for number in sorted(done)]


def _tuner(
    trial: Any, resources: Mapping[str, float], numbers: list[int], folder: Path, observer: "_Observer"
) -> ray.tune.Tuner:
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # so that relative paths in a config stay valid
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # the runs write their own logs
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # after Ctrl-C, Tune would return as if it were done
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the new output cannot be silenced
    return ray.tune.Tuner(
        ray.tune.with_resources(trial, {k: v for k, v in resources.items() if v}),
        param_space={"number": ray.tune.grid_search(numbers)},
        run_config=ray.tune.RunConfig(
            name="tune",
            storage_path=str(folder),
            verbose=0,
            callbacks=[observer],
            failure_config=ray.tune.FailureConfig(max_failures=_RETRIES),
        ),
    )


def _finished_points(
    configs: list[Config], points: list[dict[str, Any]], given: dict[str, Any], folder: Path
) -> dict[int, Point]:
    """Return the points whose runs in the folder have finished with the same settings."""
    found = {}
    for number, config in enumerate(configs):
        run_folder = _run_folder(folder, number)
        if run_folder.summary.exists():
            wanted = _local(prepare(config, **given)[0].config, gpu=False)
            recorded = tomllib.loads(run_folder.config.read_text())
            if recorded | {"hosts": None} == tomllib.loads(wanted.to_toml()) | {"hosts": None}:
                summary = read_summary(run_folder.summary)
                results = _results(config, tuple(RoundLog(run_folder.rounds)), summary)
                found[number] = Point(number, points[number], results)
    return found


def _check_kept(folder: Path, configs: Sequence[Config]) -> None:
    """Refuse to continue the points of a folder with other settings, or to leave some of them out."""
    fix = "choose another --out, or delete that folder"
    started = [path for path in sorted(folder.iterdir()) if path.name.isdecimal() and RunFolder(path).config.exists()]
    for path in started:
        if int(path.name) >= len(configs):
            raise ConfigError(f"{folder} holds a sweep over another grid, which has more points than this one; {fix}")
        if changes := changed_settings(RunFolder(path), configs[int(path.name)]):
            raise ConfigError(
                f"{folder} holds a sweep over another grid or with other settings ({'; '.join(changes[:3])}); {fix}"
            )


def _run_folder(folder: Path, number: int) -> RunFolder:
    return RunFolder(folder / f"{number:03d}")


def _local(config: Config, gpu: bool) -> Config:
    """Return the config of a trial, which runs in one process."""
    hosts = config.hosts.model_copy(update={"device": "gpu" if gpu else "cpu"})
    return config.model_copy(update={"engine": "local", "hosts": hosts, "compare": None})


def _trial(
    choice: Mapping[str, Any], configs: list[Config], given: dict[str, Any], folder: Path, gpu: bool
) -> dict[str, Any]:
    """Run one point in a trial's process. The return value becomes the trial's last result.

    Tune repeats a trial that raises an error or is lost with its node. The run then resumes.
    """
    number = int(choice["number"])
    config = configs[number]
    found = accelerator() if gpu else None
    if gpu and found is None and not config.hosts.logical_gpus:
        return {"broken": f'a trial was granted a GPU, but {why_none()}; set hosts.device = "cpu" to use CPUs'}
    run_folder = _run_folder(folder, number)
    try:
        result = run(
            _local(config, found is not None),
            **given,
            out=run_folder.path,
            resume=run_folder.config.exists(),
            progress=False,
        )
    except DivergedError as error:  # a result, not a failed trial
        return {"diverged": str(error)}
    except (RunError, ConfigError) as error:  # would fail again
        return {"broken": str(error)}
    return {"results": json.dumps(_results(config, result.records, result.summary))}


_NOT_OF_POINTS = ("label", "settings", "seeds", "failures", "pooled", "last_tenth_deviation", "ended_by")
"""Fields of a row in a comparison that say nothing about a point of a sweep, or that its summary has too."""


def _results(config: Config, records: Sequence[RoundRecord], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's summary and its row in a comparison."""
    target = config.metrics.target
    row = standing("", "", records, summary, target)._asdict()
    return {**summary, **{name: row[name] for name in row if name not in _NOT_OF_POINTS}, "target": target}


def _point(number: int, settings: dict[str, Any], metrics: Mapping[str, Any], error: Exception | None) -> Point:
    if error is not None:
        return Point(number, settings, {}, last_line(error), broken=True)
    if "results" not in metrics:
        broken = "diverged" not in metrics
        return Point(number, settings, {}, metrics.get("diverged") or metrics.get("broken", "stopped early"), broken)
    return Point(number, settings, json.loads(metrics["results"]))


class _Observer(ray.tune.Callback):
    """Reports every finished point."""

    def __init__(self, points: list[dict[str, Any]], observe: Callable[[Point], None]) -> None:
        self._points, self._observe = points, observe

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Observer":
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Tune saves its callbacks. The progress display cannot be saved, and is not needed."""
        return {}

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Called by Tune."""
        number = trial.config["number"]
        self._observe(_point(number, self._points[number], trial.last_result, None))


def _quality(point: Point) -> str:
    found = point.results
    if found.get("last_tenth_accuracy") is None:
        return f"loss {shown_loss(found.get('last_tenth_loss'))}"
    return f"accuracy {percent(found['last_tenth_accuracy'])}"


def _report(points: list[Point], configs: list[Config], metric: Ranking, share: float, folder: Path) -> Sweep:
    order = ranked(points, metric)
    names = [_run_folder(folder, point.number).path.name for point in points]
    lines = [
        {**point.settings, **point.results, "error": point.error, "folder": name}
        for point, name in zip(points, names, strict=True)
    ]
    found = {"metric": metric, "evaluated_on": "validation", "validation_share": share, "points": lines}
    write_atomic(folder / "sweep.json", json.dumps(found, indent=2) + "\n")
    broken = [point for point in points if point.broken]
    if broken:
        raise RunError(
            f"{len(broken)} of {len(points)} points failed, for example {broken[0].label}: "
            f"{broken[0].error}; repeat the command with --out {folder} --resume auto to run only the failed points"
        )
    if not order:
        lower = "lower compare.target, or " if metric == "upload_d_to_target" else ""
        missing = f"{metric} is missing in every run; {lower}use another metric"
        reasons = {point.error for point in points if point.error} or {missing}
        raise RunError(f"no point of the sweep has a result: {'; '.join(sorted(reasons))}")
    best = order[0]
    write_atomic(folder / "best.toml", configs[best.number].to_toml())
    return Sweep(tuple(points), metric, best, configs[best.number], share, folder)


def sweep_table(result: Sweep) -> Table:
    """Return the results of a sweep as a table for the terminal."""
    return points_table(result.points, result.metric, result.validation_share)
