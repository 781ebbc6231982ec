"""`[cohort]` and `[cohort.links]`: the clients of a round."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from raybcgd.errors import ConfigError
from raybcgd.section import Section


class LinksConfig(Section):
    """`[cohort.links]`: the clients' links, declared or drawn. They change no number but the simulated time of a round,
    unless `cohort.assignment = "bandwidth"`."""

    uplinks: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """Bytes a second that each client can send. None: drawn from a log-normal law."""
    median: Annotated[float, Field(gt=0)] = 1e6
    """The median of drawn uplinks, in bytes a second."""
    sigma: Annotated[float, Field(ge=0, le=20)] = 1.0
    """The deviation of their logarithm."""
    downlink_factor: Annotated[float, Field(gt=0)] | None = None
    """How many times faster than its uplink a client's downlink is. None: a download takes no time."""


class CohortConfig(Section):
    """`[cohort]`: the clients of a round."""

    clients_per_block: Annotated[int, Field(ge=1)] | None = None
    """K. A round samples N * K clients; methods without blocks sample the same number in all. 2 unless given."""
    clients_per_round: Annotated[int, Field(ge=1)] | None = None
    """S, in place of `clients_per_block`: dealt to the blocks as evenly as possible."""
    cover: Literal["all", "some"] = "all"
    """Whether a round needs a client for every block. With "some" a smaller `clients_per_round` draws as many blocks at
    random, and the others stay as they were."""
    assignment: Literal["random", "bandwidth", "need"] = "random"
    """Which blocks the clients upload: as many clients for each, dealt at random; or with slow links the small blocks;
    or more clients for blocks that have moved further of late."""
    links: LinksConfig | None = None
    """The clients' links; then the record says how long a round would take over them."""
    weighting: Literal["uniform", "samples"] = "uniform"
    """Whether every client counts the same in a mean, or as its number of samples."""
    deadline_seconds: Annotated[float, Field(gt=0)] | None = None
    """Clients that have not answered by then are dropped from the round; without it every client is waited for."""
    on_client_error: Literal["stop", "drop"] = "stop"
    """What happens when a client's own code or data fails: stop the run, or drop the client from the round."""

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        if self.clients_per_block is not None and self.clients_per_round is not None:
            raise ValueError("give clients_per_block or clients_per_round, not both")
        return self

    @model_validator(mode="after")
    def _some_blocks_are_random(self) -> Self:
        if self.cover == "some" and self.assignment != "random":
            raise ValueError(f'cover = "some" goes with assignment = "random", not "{self.assignment}"; change one')
        return self

    @model_validator(mode="after")
    def _links_are_known(self) -> Self:
        if self.assignment == "bandwidth" and self.links is None:
            raise ValueError('assignment = "bandwidth" needs the clients\' links; add a table [cohort.links]')
        return self

    def size(self, blocks: int, clients: int, blockwise: bool = True) -> int:
        """S, checked against the numbers of clients and, where the method has them, of blocks."""
        if self.clients_per_round is not None:
            if blockwise and self.clients_per_round < blocks and self.cover == "all":
                raise ConfigError(
                    f"cohort.clients_per_round = {self.clients_per_round} cannot cover {blocks} blocks; "
                    f'raise it to at least {blocks}, lower blocks.count, or set cohort.cover = "some"'
                )
            size, setting = self.clients_per_round, f"cohort.clients_per_round = {self.clients_per_round}"
        else:
            per_block = self.clients_per_block or 2
            size = blocks * per_block
            setting = f"cohort.clients_per_block = {per_block} with {blocks} blocks"
        if size > clients:
            raise ConfigError(
                f"{setting} needs {size} clients a round, but data.partition.clients = {clients}; "
                "lower the former or raise the latter"
            )
        return size
