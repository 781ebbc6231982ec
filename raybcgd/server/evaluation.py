"""Evaluate the global model on fixed pieces of the test data, so that the result does not depend on the hosts."""

from collections.abc import Sequence

from raybcgd.messages import Piece, Score
from raybcgd.record.rounds import Quality


def pieces(counts: Sequence[int], size: int) -> list[Piece]:
    """Cut the test samples of every model into pieces of at most `size` samples."""
    return [
        Piece(model, start, min(start + size, count))
        for model, count in enumerate(counts)
        for start in range(0, count, size)
    ]


def combine(parts: Sequence[Piece], scores: Sequence[Score], models: int) -> Quality:
    """Return the mean accuracy and loss over the models, from the scores of all pieces in order."""
    accuracies, losses = [], []
    for model in range(models):
        mine = [score for part, score in zip(parts, scores, strict=True) if part.model == model]
        count = sum(score.samples for score in mine)
        accuracies.append(sum(score.correct for score in mine) / count)
        losses.append(sum(score.loss for score in mine) / count)
    return Quality(
        accuracy=sum(accuracies) / models,
        loss=sum(losses) / models,
        accuracy_by_phase=tuple(accuracies) if models > 1 else None,
    )
