"""Tables whose class depends on one of their settings."""

from raybcgd.algorithms.settings import ALGORITHMS
from raybcgd.data.settings import PARTITIONS
from raybcgd.registry import Registry
from raybcgd.wire.settings import CODECS

CHOICES: dict[str, Registry] = {"algorithm": ALGORITHMS, "wire": CODECS, "partition": PARTITIONS}
"""The registry of the classes of each table."""
