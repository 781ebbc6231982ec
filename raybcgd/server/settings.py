"""`[evaluation]`: when and how the global model is evaluated."""

from typing import Annotated

from pydantic import Field

from raybcgd.section import Section


class EvaluationConfig(Section):
    """`[evaluation]`: when and how the global model is evaluated."""

    every: Annotated[int, Field(ge=1)] = 1
    """Evaluate every n rounds, and after the last round."""
    batch_size: Annotated[int, Field(ge=1)] = 500
    """Test samples per forward pass."""

    def due(self, round_index: int, rounds: int) -> bool:
        """Return whether to evaluate after a round."""
        return (round_index + 1) % self.every == 0 or round_index + 1 == rounds
