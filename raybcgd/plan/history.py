"""Measurements of past rounds, and the re-division of the parameters that is based on them.

A re-division only moves the edges between blocks in the flat order of the model. No vector is ever reordered, so
momentum, control variates and residuals stay with their coordinates when a coordinate changes its block.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from raybcgd.data.partition import Floats
from raybcgd.model.blocks import BlockLayout, recut
from raybcgd.model.settings import BlocksConfig
from raybcgd.randomness import stream

_MEMORY = 0.9
"""The weight of a round's measurements decays by this factor per round."""

Edges = tuple[int, ...]


@dataclass(frozen=True)
class History:
    """The measurements that the config needs, and the edges of the blocks."""

    edges: Edges | None = None
    """The start of each block, and the end of the last one. None: the division of `[blocks]`."""
    divisions: int = 0
    """Number of re-divisions so far."""
    moved: np.ndarray | None = None
    """Recent squared movement of the global model per coordinate."""
    drifted: np.ndarray | None = None
    """Recent mean square of the clients' displacements per coordinate."""

    @classmethod
    def fresh(cls, layout: BlockLayout, config: BlocksConfig, by_need: bool) -> "History":
        """Return the history before round 0, with only the measurements that the config needs."""
        redivides = config.redivide_every is not None
        moved = by_need or (redivides and config.redivide == "movement")
        return cls(
            moved=np.zeros(layout.size) if moved else None,
            drifted=np.zeros(layout.size) if redivides and config.redivide == "drift" else None,
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "History":
        """Read the history from a checkpoint's arrays."""
        edges = arrays.get("edges")
        return cls(
            edges=None if edges is None else tuple(int(edge) for edge in edges),
            divisions=int(arrays["divisions"][0]),
            moved=arrays.get("moved"),
            drifted=arrays.get("drifted"),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Return arrays for a checkpoint; empty if there is nothing to remember."""
        found = {"moved": self.moved, "drifted": self.drifted}
        found["edges"] = None if self.edges is None else np.array(self.edges, dtype=np.int64)
        kept = {name: array for name, array in found.items() if array is not None}
        return {**kept, "divisions": np.array([self.divisions])} if kept else {}

    def need(self, layout: BlockLayout) -> Floats:
        """Return the recent movement of each block."""
        assert self.moved is not None
        return np.sqrt([self.moved[block.slice].sum() for block in layout.blocks])

    def measured(self, before: Tensor, after: Tensor, drift: Tensor | None, trained: Tensor | None = None) -> "History":
        """Return the history after one more round, given x before and after it. NaN in `drift`: not uploaded.

        `trained` is 0 on buffers, whose movement does not count.
        """
        moved, drifted = self.moved, self.drifted
        if moved is not None:
            step = after - before if trained is None else (after - before) * trained
            moved = _decayed(moved, step.double().cpu().numpy() ** 2)
        if drifted is not None and drift is not None:
            new = drift.double().cpu().numpy()
            drifted = np.where(np.isnan(new), drifted, _decayed(drifted, new))
        return replace(self, moved=moved, drifted=drifted)

    def divided(self, layout: BlockLayout, config: BlocksConfig, seed: int, rounds: int) -> "History":
        """Return the history with the edges for the next round, after `rounds` rounds."""
        if config.redivide_every is None or rounds % config.redivide_every:
            return self
        if config.redivide_times is not None and self.divisions >= config.redivide_times:
            return self
        weights = {"movement": self.moved, "drift": self.drifted}.get(config.redivide)
        edges = recut(layout, config, weights, stream(seed, "division", rounds))
        return replace(self, edges=edges, divisions=self.divisions + 1)


def _decayed(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    return np.asarray(_MEMORY * old + (1 - _MEMORY) * new)
