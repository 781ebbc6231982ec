"""The clients' simulated links, and the transfer time of a round."""

from collections.abc import Sequence

import numpy as np

from raybcgd.data.partition import Floats
from raybcgd.errors import ConfigError
from raybcgd.plan.settings import LinksConfig
from raybcgd.randomness import stream


def uplinks(config: LinksConfig, clients: int, seed: int) -> Floats:
    """Return the uplink of each client in bytes per second."""
    if config.uplinks is None:
        drawn = stream(seed, "links").standard_normal(clients)
        return np.asarray(config.median * np.exp(config.sigma * drawn))
    if (n := len(config.uplinks)) != clients:
        raise ConfigError(f"cohort.links.uplinks has {n} entries, but data.partition.clients = {clients}; change one")
    return np.array(config.uplinks)


def simulated_seconds(
    config: LinksConfig, rates: Sequence[float], upload_bytes: Sequence[int], download_bytes: int
) -> float:
    """Return the time that the slowest client needs for its download and its upload."""
    factor = config.downlink_factor
    down = 0.0 if factor is None else download_bytes / factor
    return max(((down + up) / rate for rate, up in zip(rates, upload_bytes, strict=True)), default=0.0)
