"""`[budget]` and `[evaluation]`: when a run ends, and when and how the global model is evaluated."""

from typing import Annotated

from pydantic import Field

from raybcgd.section import Section


class BudgetConfig(Section):
    """`[budget]`: limits that end a run before `rounds`. A run ends with the first round that reaches a limit."""

    upload_d: Annotated[float, Field(gt=0)] | None = None
    """Mean upload per sampled client, in units of the model size d: bytes / (4 d). None: no limit."""
    upload_bytes: Annotated[int, Field(ge=1)] | None = None
    """Bytes uploaded by all clients. None: no limit."""
    simulated_seconds: Annotated[float, Field(gt=0)] | None = None
    """Simulated time of uploads and downloads. Needs `cohort.links`. None: no limit."""


class EvaluationConfig(Section):
    """`[evaluation]`: when and how the global model is evaluated."""

    every: Annotated[int, Field(ge=1)] = 1
    """Evaluate every n rounds, and after the last round."""
    batch_size: Annotated[int, Field(ge=1)] = 500
    """Test samples per forward pass."""

    def due(self, round_index: int, rounds: int) -> bool:
        """Return whether to evaluate after a round."""
        return (round_index + 1) % self.every == 0 or round_index + 1 == rounds
