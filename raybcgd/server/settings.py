"""`[budget]` and `[evaluation]`: when a run ends, and when and how the global model is evaluated."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_serializer, field_validator

from raybcgd.model.settings import METRICS
from raybcgd.section import Section


class BudgetConfig(Section):
    """`[budget]`: limits that end a run before `rounds`. A run ends with the first round that reaches a limit."""

    upload_d: Annotated[float, Field(gt=0)] | None = None
    """Mean upload per sampled client, in units of the model size d: bytes / (4 d). None: no limit."""
    upload_bytes: Annotated[int, Field(ge=1)] | None = None
    """Bytes uploaded by all clients. None: no limit."""
    simulated_seconds: Annotated[float, Field(gt=0)] | None = None
    """Simulated time of uploads and downloads. Needs `cohort.links`. None: no limit."""
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    """End a run with the first evaluation that reaches this accuracy. None: no limit."""
    patience: Annotated[int, Field(ge=1)] | None = None
    """End a run after this many evaluations without a new highest accuracy; for regression, without a new lowest loss.
    None: no limit."""

    @property
    def by_quality(self) -> bool:
        """Whether an evaluation can end a run. If so, a round starts only after the previous one is evaluated."""
        return self.target_accuracy is not None or self.patience is not None

    def enough(self, qualities: Sequence[float]) -> str | None:
        """Return why the run ends, given the accuracies so far (negative losses for regression). None if it goes on."""
        if not qualities:
            return None
        if self.target_accuracy is not None and qualities[-1] >= self.target_accuracy:
            return f"budget.target_accuracy = {self.target_accuracy:g}, which is reached"
        if self.patience is not None and (count := since_best(qualities)) >= self.patience:
            last = "evaluation" if count == 1 else f"{count} evaluations"
            return f"budget.patience = {self.patience}: no new best in the last {last}"
        return None


def since_best(qualities: Sequence[float]) -> int:
    """Return the number of evaluations after the best one."""
    return len(qualities) - 1 - qualities.index(max(qualities))


class EvaluationConfig(Section):
    """`[evaluation]`: when and how the global model is evaluated."""

    every: Annotated[int, Field(ge=1)] = 1
    """Evaluate every n rounds, and after the last round."""
    batch_size: Annotated[int, Field(ge=1)] = 500
    """Test samples per forward pass."""
    clients: Literal["all"] | Annotated[int, Field(ge=0)] = 0
    """Number of clients, drawn once, on whose own training samples the global model is also evaluated. The record gets
    the mean, the worst tenth and the standard deviation of their accuracies. The worst tenth is the mean of the lowest
    accuracies: of a tenth of these clients, rounded down, but at least of one. all: every client. 0: none."""
    metrics: tuple[str | Callable[..., Any], ...] = ()
    """Further metrics: top5, for more than five classes, absolute_error, for regression, or "package.module:function",
    a function (outputs, targets) that returns one number per sample. The record gets their means over the test data by
    name."""

    @field_validator("metrics")
    @classmethod
    def _different_names(cls, metrics: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [METRICS.name_of(metric).rpartition(":")[2] for metric in metrics]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two metrics are called {twice!r}; rename one function")
        return metrics

    @field_serializer("metrics")
    def _metrics_by_name(self, metrics: tuple[Any, ...]) -> list[str]:
        return [METRICS.name_of(metric) for metric in metrics]

    def due(self, round_index: int, rounds: int) -> bool:
        """Return whether to evaluate after a round."""
        return (round_index + 1) % self.every == 0 or round_index + 1 == rounds
