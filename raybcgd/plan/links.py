"""How fast the clients' links are, and how long a round would take over them."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from raybcgd.data.partition import Floats
from raybcgd.errors import ConfigError
from raybcgd.randomness import stream
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


def uplinks(config: LinksConfig, clients: int, seed: int) -> Floats:
    """Every client's uplink, in bytes a second."""
    if config.uplinks is None:
        drawn = stream(seed, "links").standard_normal(clients)
        return np.asarray(config.median * np.exp(config.sigma * drawn))
    if len(config.uplinks) != clients:
        raise ConfigError(
            f"cohort.links.uplinks has {len(config.uplinks)} entries, but data.partition.clients = {clients}; "
            "give one for each client"
        )
    return np.array(config.uplinks)


def simulated_seconds(
    config: LinksConfig, rates: Sequence[float], upload_bytes: Sequence[int], download_bytes: int
) -> float:
    """The time of a round over the clients' links: the slowest client's, for its download and its upload."""
    factor = config.downlink_factor
    down = 0.0 if factor is None else download_bytes / factor
    return max(((down + up) / rate for rate, up in zip(rates, upload_bytes, strict=True)), default=0.0)
