"""Evaluate the global model on fixed pieces of the test data, so that the result does not depend on the hosts."""

import math
from collections.abc import Sequence

from raybcgd.messages import Piece, Score
from raybcgd.model.settings import METRICS
from raybcgd.record.rounds import Quality
from raybcgd.server.client_quality import client_quality
from raybcgd.server.settings import EvaluationConfig


def pieces(counts: Sequence[int], size: int) -> list[Piece]:
    """Cut the test samples of every model into pieces of at most `size` samples."""
    return [
        Piece(model, start, min(start + size, count))
        for model, count in enumerate(counts)
        for start in range(0, count, size)
    ]


def combine(
    parts: Sequence[Piece],
    scores: Sequence[Score],
    models: int,
    names: Sequence[str] = (),
    regression: bool = False,
) -> Quality:
    """Return the mean accuracy and loss over the models, from the scores of all pieces in order.

    `names` are those of `evaluation.metrics`. Pieces of clients count only for the clients' statistics. A regression
    has no accuracy; the root of its mean squared error is the metric "rmse".
    """
    accuracies, losses, metrics, errors = [], [], [], []
    for model in range(models):
        pairs = zip(parts, scores, strict=True)
        mine = [score for part, score in pairs if part.model == model and part.client is None]
        count = sum(score.samples for score in mine)
        accuracies.append(sum(score.correct for score in mine) / count)
        errors.append(sum(score.squared_error for score in mine) / count)
        losses.append(sum(score.loss for score in mine) / count)
        metrics.append([sum(values) / count for values in zip(*(score.metrics for score in mine), strict=True)])
    means = [sum(values) / models for values in zip(*metrics, strict=True)]
    found = dict(zip(names, means, strict=True))
    if regression:
        error = sum(errors) / models
        rmse = {} if math.isnan(error) else {"rmse": math.sqrt(error)}
        return Quality(loss=sum(losses) / models, metrics={**rmse, **found} or None)
    return Quality(
        accuracy=sum(accuracies) / models,
        loss=sum(losses) / models,
        accuracy_by_phase=tuple(accuracies) if models > 1 else None,
        clients=client_quality(parts, scores),
        metrics=found or None,
    )


def metric_names(config: EvaluationConfig) -> list[str]:
    """Return the names of `evaluation.metrics` in the record: those of the functions."""
    return [METRICS.name_of(metric).rpartition(":")[2] for metric in config.metrics]
