"""`[local]`: local training."""

from typing import Annotated, Literal

from pydantic import Field

from raybcgd.section import Section


class LocalConfig(Section):
    """`[local]`: the local training of a client in each round."""

    epochs: Annotated[int, Field(ge=1, le=100_000)] = 5
    """E, the number of passes over the client's data."""
    steps: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """T, the number of local steps. If set, `epochs` is ignored."""
    batch_size: Annotated[int, Field(ge=1)] | Literal["full"] = 50
    """B, the number of samples per batch. full: all samples of the client."""
    drop_last: bool = False
    """Drop the last batch of a pass if it is smaller than `batch_size`. Needed for batch norm, which cannot train on a
    batch of one sample. Clients with fewer samples than `batch_size` keep their only batch."""
    anchor_memory_mb: Annotated[float, Field(ge=0)] = 512.0
    """Memory per host to cache FedBCGD+'s batch gradients at x. If they do not fit, each step recomputes its own."""
    precision: Literal["float32", "bf16"] = "float32"
    """bf16: compute the forward and backward passes in bfloat16 where torch's autocast considers it safe. Weights,
    gradients, client states and sums stay in float32."""
    compile: str | None = None
    """Backend of torch.compile for the forward and backward passes of local training, such as "inductor", which needs a
    C++ compiler on CPUs. Compiling takes up to a minute per host, and fused kernels differ in the last bits. Default:
    do not compile."""
    stack: Literal["auto"] | Annotated[int, Field(ge=0)] = "auto"
    """Number of clients that a host trains together, as one stack. 0: one client at a time. auto: 64 if the model is
    small, has no convolutions and can train in a stack, otherwise 0."""

    def num_batches(self, samples: int) -> int:
        """Return the number of batches per epoch."""
        if self.batch_size == "full":
            return 1
        return max(1, samples // self.batch_size) if self.drop_last else -(-samples // self.batch_size)

    def num_steps(self, samples: int) -> int:
        """Return T for a client with this many samples."""
        return self.steps or self.epochs * self.num_batches(samples)
