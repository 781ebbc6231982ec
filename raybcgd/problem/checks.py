"""Checks before a run: whether model, data, blocks, cohort and stack fit together."""

import logging
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from raybcgd.algorithms.contract import ControlVariate, marked, title
from raybcgd.config.schema import Config
from raybcgd.data.dataset import Dataset
from raybcgd.data.normalise import as_targets, normalise
from raybcgd.errors import ConfigError
from raybcgd.model.blocks import recut
from raybcgd.model.losses import OF_LABELS, OF_NUMBERS
from raybcgd.model.metrics import Metrics
from raybcgd.model.outputs import logits_of
from raybcgd.model.settings import LOSSES, METRICS
from raybcgd.model.stacking import fails_in_stack, not_stackable
from raybcgd.model.trial import Tried, try_out
from raybcgd.problem.definition import Problem
from raybcgd.randomness import stream
from raybcgd.storage import open_address
from raybcgd.wire.topk import TopK

log = logging.getLogger(__name__)

_STACKED_PARAMETERS = 200_000
_KNOWN_TO_STACK = ("mlp", "logistic", "sigmoid_erm")
"""Models that are not tried out: a trial would import torch's compiler and take a second."""


def check(problem: Problem, dataset: Dataset) -> None:
    """Raise an error, before the run starts, if model, data, blocks, cohort and stack do not fit together."""
    config = problem.config
    if config.data.augment and len(problem.input_shape) != 3:
        raise ConfigError("data.augment needs images, but this data has none; remove data.augment")
    if config.analysis is not None and config.checkpoint.every == 0:
        raise ConfigError("[analysis] needs a checkpoint, but checkpoint.every = 0 writes none; set it to at least 1")
    if config.budget.simulated_seconds is not None and config.cohort.links is None:
        raise ConfigError("budget.simulated_seconds needs the clients' bandwidth; add a [cohort.links] table")
    evaluated = config.evaluation.clients
    if evaluated != "all" and evaluated > problem.clients and not problem.algorithm.pooled:
        raise ConfigError(
            f'evaluation.clients = {evaluated}, but there are {problem.clients} clients; set it to "all", or lower it'
        )
    gpu_here = config.engine == "local" and config.hosts.device == "gpu"
    if gpu_here and not torch.accelerator.is_available():
        raise ConfigError('hosts.device = "gpu" with engine = "local", but this machine has no GPU; set it to "cpu"')
    if config.local.precision == "bf16" and config.model.dtype == "float64":
        raise ConfigError('local.precision = "bf16" needs model.dtype = "float32"; change one of them')
    if (backend := config.local.compile) is not None and backend not in torch.compiler.list_backends(()):
        known = ", ".join(torch.compiler.list_backends())
        raise ConfigError(f'local.compile = "{backend}" is not a backend of torch.compile; use one of {known}')
    if config.checkpoint.address is not None:
        open_address(config.checkpoint.address)
    _ = problem.cohort_size, problem.stack, problem.loss, problem.uplinks
    if config.blocks.redivide_every is not None:
        recut(problem.layout, config.blocks, None, stream(0))
    _check_metrics(problem, dataset)
    _warn_about_shared(problem)
    _warn_about_error_feedback(problem)


def _warn_about_shared(problem: Problem) -> None:
    """Warn if every client uploads most of the model, because there is one block or the last layer is most of it."""
    layout, shared = problem.layout, problem.config.blocks.shared
    if problem.algorithm.blockwise and problem.num_blocks == 1 and problem.config.blocks.count is None:
        log.warning(
            "note: the layers of this model form one block, so every client uploads all of it; for more blocks, set "
            'blocks.division = "equal" and blocks.count'
        )
    share = layout.shared.size / layout.size
    if problem.algorithm.blockwise and shared in (None, "last") and share > 0.5:
        log.warning(
            "the shared block, %s, is %.0f %% of the model, and every client uploads it; set blocks.shared to smaller "
            'layers, to "none" or, with blocks.division = "equal", to a number of coordinates',
            *(", ".join(layout.shared.layers), 100 * share),
        )


def _warn_about_error_feedback(problem: Problem) -> None:
    """Note that a method with control variates diverges if clients also keep unsent values for later uploads."""
    method, codec = type(problem.algorithm), problem.codec
    if isinstance(codec, TopK) and codec.error_feedback and marked(method.Server, ControlVariate):
        note(
            f"{title(method)} with wire.error_feedback = true can diverge, because its control variates already "
            "compensate for unsent values; set wire.error_feedback = false"
        )


def try_model(problem: Problem, dataset: Dataset) -> None:
    """Raise an error if the model and the loss do not fit the data."""
    _check_task(problem, dataset)
    inputs, targets = _samples(problem, dataset, 2)
    if not dataset.regression:
        targets[-1] = dataset.classes - 1  # the model needs an output for the last class
    bf16 = problem.config.local.precision == "bf16"
    fix = "choose another model, or set model.options" if problem.own_module is None else "pass another module"
    names = Tried(problem.model_label, fix, LOSSES.name_of(problem.config.model.loss))
    try_out(problem.module().to(problem.dtype), problem.loss, (inputs, targets), dataset.classes, names, bf16)


def _check_task(problem: Problem, dataset: Dataset) -> None:
    """Raise an error if the loss or another setting does not fit the kind of targets."""
    config, loss = problem.config, LOSSES.name_of(problem.config.model.loss)
    if not dataset.regression:
        if loss in OF_NUMBERS:
            raise ConfigError(
                f'model.loss = "{loss}" needs float targets, but the data has {dataset.classes} classes; set '
                'data.task = "regression", or model.loss = "cross_entropy"'
            )
        return
    if loss in OF_LABELS:
        raise ConfigError(
            f'model.loss = "{loss}" needs labels, but the targets are floats; set model.loss to mse or l1 for '
            "regression, or use integer labels"
        )
    levels = () if config.analysis is None else config.analysis.conformal_levels
    for setting, used, fix in (
        ("evaluation.clients", config.evaluation.clients != 0, "remove it, or set it to 0"),
        ("budget.target_accuracy", config.budget.target_accuracy is not None, "remove it"),
        ("analysis.conformal_levels", len(levels) > 0, "set it to []"),
    ):
        if used:
            raise ConfigError(f"{setting} needs labels, but the targets are floats (regression); {fix}")


def check_compare_target(config: Config, problem: Problem) -> None:
    """Raise an error if `compare.target`, which is an accuracy, is set for a regression."""
    if problem.regression and config.compare is not None and config.compare.target is not None:
        raise ConfigError("compare.target needs labels, but the targets are floats (regression); remove it")


def _check_metrics(problem: Problem, dataset: Dataset) -> None:
    """Raise an error if a metric does not fit the targets, or does not return one number per sample."""
    metrics = problem.config.evaluation.metrics
    names = [METRICS.name_of(metric) for metric in metrics]
    if "absolute_error" in names and not dataset.regression:
        raise ConfigError(
            f'evaluation.metrics: "absolute_error" is for regression, but the data has {dataset.classes} classes; '
            'remove it, or set data.task = "regression" and model.loss = "mse"'
        )
    if "top5" in names and dataset.regression:
        raise ConfigError(
            'evaluation.metrics: "top5" needs labels, but the targets are floats (regression); remove it, or use '
            '"absolute_error"'
        )
    if "top5" in names and dataset.classes <= 5:  # it would be 1 for every sample
        raise ConfigError(
            f'evaluation.metrics: "top5" needs more than 5 classes, but the data has {dataset.classes}; remove it'
        )
    if metrics:
        inputs, targets = _samples(problem, dataset, 2)
        with torch.no_grad():
            outputs = logits_of(problem.module().to(problem.dtype).eval()(inputs))
        Metrics(metrics).sums(outputs, targets)


def _samples(problem: Problem, dataset: Dataset, count: int) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets of the first training samples. If there are too few, samples repeat."""
    rows = np.arange(count) % len(dataset.train)
    inputs = normalise(torch.from_numpy(dataset.train.inputs[rows]), dataset, problem.dtype)
    return inputs, as_targets(dataset.train.targets[rows], problem.dtype)


def no_stack(problem: Problem, dataset: Dataset) -> str | None:
    """Return why clients train one at a time. None: they train in stacks. The model is tried out once."""
    module, wanted = problem.module(), problem.config.local.stack
    if wanted == "auto":
        if any(isinstance(child, nn.modules.conv._ConvNd) for child in module.modules()):
            return "a stack of convolutions is slower"
        if problem.layout.size > _STACKED_PARAMETERS:
            return "a stack of models of this size is slower"
    if wanted == 0 or (reason := not_stackable(module)) is not None:
        return reason if wanted else "local.stack = 0"
    known = problem.own_module is None and problem.config.model.name in _KNOWN_TO_STACK
    if wanted == "auto" and known and problem.config.model.loss in LOSSES:
        return None
    reason = fails_in_stack(problem.flat_model(), problem.loss, *_samples(problem, dataset, 3))
    if reason is not None and wanted == "auto":
        note(f"clients train one at a time, because the model cannot train in a stack: {reason}")
    return reason


@cache
def note(text: str) -> None:
    """Log a note once per process: a comparison checks the same settings several times."""
    log.warning("note: %s", text)
