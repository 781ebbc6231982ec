"""Experiment trackers: they get every round while a run is in progress, and its files at the end."""

import hashlib
import logging
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from raybcgd.config.schema import Config
from raybcgd.errors import ConfigError, named_line
from raybcgd.record.rounds import RoundRecord
from raybcgd.report.page import write_report
from raybcgd.report.runs import flat_settings, read_runs
from raybcgd.report.tensorboard import scalars
from raybcgd.storage import RunFolder

log = logging.getLogger(__name__)

_END_SECONDS = 120.0
"""How long a run waits at its end for trackers that have not caught up."""
_CONNECT_SECONDS = 30.0
"""How long a run waits at its end for trackers that have not even connected."""
_STOP_SECONDS = 5.0
"""How long a run waits for trackers if it failed or was interrupted."""


class Tracker(Protocol):
    """A tracker of one run. All calls come from the same thread."""

    wants_files: bool
    """Whether to draw the report and pass all files at the end."""

    def observe(self, record: RoundRecord) -> None:
        """Log a round."""

    def end(self, files: list[Path], finished: bool) -> None:
        """Store files, and mark the run as finished or failed."""


class TensorBoardTracker:
    """Writes TensorBoard events to the run folder."""

    wants_files = False

    def __init__(self, folder: RunFolder, config: Config) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open: Callable[..., Any] = SummaryWriter
        self._path, self._text = folder.path / "tensorboard", config.to_toml()
        self._writer: Any = None

    def observe(self, record: RoundRecord) -> None:
        if self._writer is None:
            # After a resume, hide the rounds from this one on that an earlier process has already written.
            self._writer = self._open(str(self._path), purge_step=record.round)
            self._writer.add_text("config", f"```toml\n{self._text}```")
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.round, record.timing.finished_at)
        self._writer.flush()

    def end(self, files: list[Path], finished: bool) -> None:
        if self._writer is not None:
            self._writer.close()


class MlflowTracker:
    """Logs to an MLflow server or store. A resumed run continues the MLflow run of its folder."""

    wants_files = True

    def __init__(self, address: str, folder: RunFolder, config: Config) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(tracking_uri=address), Metric
        experiment = self._client.get_experiment_by_name("raybcgd")
        number = experiment.experiment_id if experiment else self._client.create_experiment("raybcgd")
        path = str(folder.path.absolute())
        found = self._client.search_runs([number], f"tags.`raybcgd.folder` = '{path}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {"raybcgd.folder": path, "mlflow.runName": folder.run_name}
        self._id = self._client.create_run(number, tags=tags).info.run_id
        settings = flat_settings(config.model_dump(mode="json", exclude_none=True))
        params = [Param(key, str(value)[:500]) for key, value in settings]
        for start in range(0, len(params), 100):  # the maximum per call
            self._client.log_batch(self._id, params=params[start : start + 100])

    def observe(self, record: RoundRecord) -> None:
        when = int(1000 * (record.timing.finished_at or time.time()))
        metrics = [self._metric(name, value, when, record.round) for name, value in scalars(record).items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, files: list[Path], finished: bool) -> None:
        for file in files:
            self._client.log_artifact(self._id, str(file))
        self._client.set_terminated(self._id, "FINISHED" if finished else "FAILED")


class WandbTracker:
    """Logs to Weights & Biases. A resumed run continues the W&B run of its folder."""

    wants_files = True

    def __init__(self, project: str, folder: RunFolder, config: Config) -> None:
        import wandb

        identity = hashlib.sha256(str(folder.path.absolute()).encode()).hexdigest()[:16]
        self._artifact: Callable[..., Any] = wandb.Artifact
        self._name = f"run-{identity}"
        self._run: Any = wandb.init(
            project=project,
            name=folder.run_name,
            id=identity,
            resume="allow",
            dir=str(folder.path),
            config=config.model_dump(mode="json", exclude_none=True),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def observe(self, record: RoundRecord) -> None:
        self._run.log(scalars(record), step=record.round)

    def end(self, files: list[Path], finished: bool) -> None:
        if files:
            artifact = self._artifact(self._name, type="run")
            for file in files:
                artifact.add_file(str(file))
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if finished else 1)


class Trackers:
    """Passes rounds to trackers in a separate thread, so that a slow server does not delay a round."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self._folder = folder
        self._queue: queue.SimpleQueue[RoundRecord | bool] = queue.SimpleQueue()
        self._makers = _makers(config, folder)
        self._connected = threading.Event()
        """Set when every tracker has connected or failed to."""
        self._thread = threading.Thread(target=self._run, name="trackers", daemon=True)
        if self._makers:
            self._thread.start()

    def observe(self, record: RoundRecord) -> None:
        """Queue a finished round."""
        if self._makers:
            self._queue.put(record)

    def end(self, finished: bool) -> None:
        """Wait, for a limited time, until all trackers have caught up."""
        if self._makers:
            self._queue.put(finished)
            began, limit = time.monotonic(), _END_SECONDS if finished else _STOP_SECONDS
            if self._connected.wait(min(limit, _CONNECT_SECONDS)):
                self._thread.join(limit)
            if self._thread.is_alive():
                seconds = time.monotonic() - began
                log.warning("the trackers of %s did not finish within %.0f s", self._folder.path, seconds)

    def _run(self) -> None:
        made = {name: tracker for name, make in self._makers.items() if (tracker := _try(name, make)) is not None}
        self._connected.set()
        while True:
            item = self._queue.get()
            if isinstance(item, bool):
                break
            for name in list(made):
                self._call(made, name, partial(made[name].observe, item))
        with tempfile.TemporaryDirectory() as temporary:
            wanted = item and any(tracker.wants_files for tracker in made.values())
            files = _files(self._folder, Path(temporary)) if wanted else []
            for name in list(made):
                self._call(made, name, partial(made[name].end, files, item))

    def _call(self, made: dict[str, Tracker], name: str, call: Callable[[], None]) -> None:
        """Call a tracker. One that fails is not called again."""

        def succeeds() -> bool:
            call()
            return True

        if not _try(name, succeeds):
            del made[name]


def _makers(config: Config, folder: RunFolder) -> dict[str, Callable[[], Tracker]]:
    """Return the functions that start the trackers of a config, by the name of their setting."""
    track = config.track
    found: dict[str, Callable[[], Tracker]] = {}
    if track.tensorboard:
        found["tensorboard"] = partial(TensorBoardTracker, folder, config)
    if track.mlflow is not None:
        found["mlflow"] = partial(MlflowTracker, track.mlflow, folder, config)
    if track.wandb is not None:
        found["wandb"] = partial(WandbTracker, track.wandb, folder, config)
    return found


def _try(name: str, call: Callable[[], Any]) -> Any:
    """Return the result of a call, or None after a warning. Trackers can fail in any way; the run continues."""
    try:
        return call()
    except ImportError as error:
        log.warning("track.%s needs a package (%s); pip install raybcgd[%s]", name, error, name)
    except Exception as error:
        log.warning("track.%s failed and is now off (%s)", name, named_line(error))
    return None


def _files(folder: RunFolder, temporary: Path) -> list[Path]:
    """Return the files of a finished run, and its report if it can be drawn."""
    files = [file for file in (folder.config, folder.rounds, folder.summary, folder.final) if file.exists()]
    try:
        runs = read_runs([folder.path])
        write_report(runs, runs[0].config.metrics.target, temporary / "report.html", asked=False)
    except ConfigError as error:  # for example, matplotlib is not installed
        log.warning("no report for the trackers: %s", error)
        return files
    return [*files, temporary / "report.html"]


@contextmanager
def tracking(config: Config, folder: RunFolder) -> Iterator[Trackers]:
    """Track a run while the block runs. If the block fails, the trackers mark the run as failed."""
    trackers = Trackers(config, folder)
    finished = False
    try:
        yield trackers
        finished = True
    finally:
        trackers.end(finished)
