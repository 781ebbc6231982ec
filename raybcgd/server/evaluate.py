"""Judging the global model on test data, in fixed pieces so that the result does not depend on who computes them."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from pydantic import Field

from raybcgd.section import Section


class EvaluationConfig(Section):
    """`[evaluation]`: when and how the global model is judged."""

    every: Annotated[int, Field(ge=1)] = 1
    """Evaluate after every n-th round, and after the last one."""
    batch_size: Annotated[int, Field(ge=1)] = 500
    """Test samples that go through the model at once."""

    def due(self, round_index: int, rounds: int) -> bool:
        """Whether a round's model is judged."""
        return (round_index + 1) % self.every == 0 or round_index + 1 == rounds


class Piece(NamedTuple):
    """A run of the test samples of a data phase, to be judged by the model of that number."""

    model: int
    start: int
    stop: int


class Score(NamedTuple):
    """What came out for a piece."""

    correct: int
    loss: float
    samples: int


class Quality(NamedTuple):
    """The mean over the data phases of accuracy and loss."""

    accuracy: float
    loss: float
    by_phase: tuple[float, ...]
    """The accuracy on each phase's test data."""


def pieces(counts: Sequence[int], size: int) -> list[Piece]:
    """The test samples of every model in pieces of at most `size`."""
    return [
        Piece(model, start, min(start + size, count))
        for model, count in enumerate(counts)
        for start in range(0, count, size)
    ]


def combine(parts: Sequence[Piece], scores: Sequence[Score], models: int) -> Quality:
    """The mean accuracy and loss over the models, from the scores of all pieces in their order."""
    accuracies, losses = [], []
    for model in range(models):
        mine = [score for part, score in zip(parts, scores, strict=True) if part.model == model]
        count = sum(score.samples for score in mine)
        accuracies.append(sum(score.correct for score in mine) / count)
        losses.append(sum(score.loss for score in mine) / count)
    return Quality(sum(accuracies) / models, sum(losses) / models, tuple(accuracies))
