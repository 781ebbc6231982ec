"""[Ray] Collect the hosts' partial sums at the end of a round: combined per node, then on the coordinator.

The partial sum of a large model is sent in pieces, one object each, so that a host can free what it has sent.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raybcgd.aggregation.exact import merge_levels
from raybcgd.messages import Partial, SumKey


def collect_node(node: str, actors: Sequence[Any], combine: bool) -> Iterator[Partial]:
    """Yield the partial sums of a node's hosts, piece by piece. If a host is lost, raise before the first piece.

    With `combine`, the node adds up the sums of its hosts first, so that it sends each piece only once.
    """
    headers = ray.get([actor.begin_hand_over.remote() for actor in actors])
    pieces: dict[SumKey, list[Any]] = {}
    for actor, (_, keys) in zip(actors, headers, strict=True):
        for key in keys:
            pieces.setdefault(key, []).append(actor.take_piece.remote(key))
    if combine:
        on_node = NodeAffinitySchedulingStrategy(node, soft=True)
        add = _add.options(scheduling_strategy=on_node, num_cpus=0)
        pieces = {key: [add.remote(*refs)] if len(refs) > 1 else refs for key, refs in pieces.items()}
    refs = [ref for found in pieces.values() for ref in found]
    ray.wait(refs, num_returns=len(refs))
    ray.get(refs)  # raises an error if a piece was lost, before the first merge: merging cannot be undone
    del refs
    while pieces:
        key, found = pieces.popitem()
        while found:
            yield Partial((), {key: ray.get(found.pop())})
    yield Partial(tuple(client for clients, _ in headers for client in clients), {})


@ray.remote(max_retries=0)
def _add(*sums: Mapping[int, np.ndarray]) -> Mapping[int, np.ndarray]:
    """Return the sum of some pieces."""
    return merge_levels(sums)
