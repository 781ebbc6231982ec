"""`[cohort]` and `[cohort.links]`: the clients of a round."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from raybcgd.errors import ConfigError
from raybcgd.section import Section

_DEFAULT_SIZE = 10


class LinksConfig(Section):
    """`[cohort.links]`: the clients' bandwidth. It determines the simulated time of a round and, with
    `cohort.assignment = "bandwidth"`, each client's block."""

    uplinks: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """Uplink of each client in bytes per second. Default: drawn from a log-normal distribution."""
    median: Annotated[float, Field(gt=0)] = 1e6
    """Median of the drawn uplinks, in bytes per second."""
    sigma: Annotated[float, Field(ge=0, le=20)] = 1.0
    """Standard deviation of the logarithm of the drawn uplinks."""
    downlink_factor: Annotated[float, Field(gt=0)] | None = None
    """Ratio of a client's downlink to its uplink. None: downloads take no time."""


class CohortConfig(Section):
    """`[cohort]`: the clients of a round."""

    clients_per_block: Annotated[int, Field(ge=1)] | None = None
    """K, the number of clients per block. A round samples N * K clients, even if a method has no blocks. Default: 2
    or, if N is not set either, 10 clients per round. If there are fewer clients than this default needs, a round
    samples all."""
    clients_per_round: Annotated[int, Field(ge=1)] | None = None
    """S, the number of clients per round, spread evenly over the blocks. Use it instead of `clients_per_block`."""
    cover: Literal["all", "some"] = "all"
    """all: every block needs a client. some: if `clients_per_round` is smaller than the number of blocks, each client
    gets a different random block, and the other blocks stay unchanged."""
    assignment: Literal["random", "bandwidth", "need"] = "random"
    """How blocks are assigned. random: the same number of clients per block. bandwidth: the same, with small
    blocks for slow uplinks. need: more clients for blocks that have moved further in recent rounds."""
    links: LinksConfig | None = None
    """The clients' bandwidth. If set, round records include the simulated time."""
    weighting: Literal["uniform", "samples"] = "uniform"
    """Weights of the clients in means. uniform: equal. samples: proportional to their number of samples."""
    deadline_seconds: Annotated[float, Field(gt=0)] | None = None
    """Drop clients that have not finished after this time. None: wait for all. With engine = "local", clients train
    one after another, so those after a late client do not start."""
    on_client_error: Literal["stop", "drop"] = "stop"
    """What to do if a client's local training fails. stop: stop the run. drop: drop the client from the round; the
    run still stops if all clients of a round fail."""

    @model_validator(mode="after")
    def _compatible(self) -> Self:
        if self.clients_per_block is not None and self.clients_per_round is not None:
            raise ValueError("clients_per_block and clients_per_round are mutually exclusive; remove one")
        if self.cover == "some" and self.assignment != "random":
            raise ValueError(f'cover = "some" needs assignment = "random", not "{self.assignment}"; change one')
        if self.assignment == "bandwidth" and self.links is None:
            raise ValueError('assignment = "bandwidth" needs the clients\' bandwidth; add a [cohort.links] table')
        return self

    def size(self, blocks: int, clients: int, blockwise: bool = True, default_blocks: bool = False) -> int:
        """Return S. Raise an error if there are fewer clients than S or, with `blockwise`, more blocks than S.

        `default_blocks`: the config does not set the number of blocks.
        """
        if self.clients_per_round is not None:
            size, setting = self.clients_per_round, f"cohort.clients_per_round = {self.clients_per_round}"
        elif self.clients_per_block is not None:
            size = blocks * self.clients_per_block
            setting = f"cohort.clients_per_block = {self.clients_per_block} with {blocks} blocks"
        else:
            size = min(clients, _DEFAULT_SIZE if default_blocks else 2 * blocks)
            setting = f"data.partition.clients = {clients}"
        if size > clients:
            raise ConfigError(
                f"{setting} needs {size} clients per round, but there are {clients}; lower it, or raise "
                "data.partition.clients if the data does not define its clients"
            )
        if blockwise and size < blocks and (self.cover == "all" or self.clients_per_round is None):
            some = 'set cohort.cover = "some"' + ("" if self.clients_per_round else " and cohort.clients_per_round")
            raise ConfigError(
                f"{setting} is less than the {blocks} blocks; raise it to at least {blocks}, lower blocks.count, "
                f"or {some}"
            )
        return size
