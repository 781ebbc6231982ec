"""`[local]`: a client's training in a round."""

from typing import Annotated, Literal

from pydantic import Field

from raybcgd.section import Section


class LocalConfig(Section):
    """`[local]`: a client's training in a round."""

    epochs: Annotated[int, Field(ge=1)] = 5
    """E, passes over the client's data."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """T, local steps; replaces `epochs`."""
    batch_size: Annotated[int, Field(ge=1)] | Literal["full"] = 50
    """B, or "full" for all of the client's samples in one batch."""
    anchor_memory_mb: Annotated[float, Field(ge=0)] = 512.0
    """Memory for the batch gradients at x that FedBCGD+ keeps during a round. What does not fit is recomputed."""
    stack: Literal["auto"] | Annotated[int, Field(ge=0)] = "auto"
    """Number of clients trained together as a stack; 0 trains one at a time. auto: stack small models without
    convolutions."""

    def num_batches(self, samples: int) -> int:
        """Return the number of batches in one pass over `samples`."""
        return 1 if self.batch_size == "full" else -(-samples // self.batch_size)

    def num_steps(self, samples: int) -> int:
        """Return T for a client with `samples`."""
        return self.steps or self.epochs * self.num_batches(samples)
