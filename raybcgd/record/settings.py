"""`[checkpoint]` and `[metrics]`: what a run saves and exports."""

from typing import Annotated

from pydantic import Field

from raybcgd.section import Section


class CheckpointConfig(Section):
    """`[checkpoint]`: when and where to save a run."""

    every: Annotated[int, Field(ge=0)] = 10
    """Save every n rounds, and after the last round. 0: never."""
    keep: Annotated[int, Field(ge=1)] = 2
    """Number of checkpoints to keep."""
    address: str | None = None
    """Folder or address, such as s3://bucket/path, that every node can reach. Default: the run folder."""

    def due(self, round_index: int, rounds: int) -> bool:
        """Return whether to save after a round."""
        return self.every > 0 and ((round_index + 1) % self.every == 0 or round_index + 1 == rounds)


class MetricsConfig(Section):
    """`[metrics]`: the Prometheus endpoint of a run."""

    enabled: bool = True
    """Whether to serve metrics."""
    host: str = "127.0.0.1"
    """The address to listen on. Use 0.0.0.0 if Prometheus runs on another machine."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """The port. If it is in use, the run uses a free one. 0: any free port. Prometheus finds it through the discovery
    folder."""
    discovery: str | None = None
    """Folder of the files through which Prometheus discovers runs. Default: raybcgd-discovery in the system's
    temporary folder, where the included prometheus.yml expects them."""
    linger_seconds: Annotated[float, Field(ge=0)] = 15.0
    """Maximum time to wait for a scrape after the last round. A run that was never scraped does not wait."""
    target: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Target accuracy. `compare.target` overrides it in comparisons and sweeps."""
