"""[Ray] Evaluate models on the client hosts, and repeat what is lost with a host."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray
from torch import Tensor

from raybcgd.engine.ray.hosts import LOST, HostGroup
from raybcgd.errors import RunError, last_line
from raybcgd.messages import Piece, Score


def evaluate(
    hosts: HostGroup, models: Sequence[Tensor], pieces: Sequence[Piece], max_retries: int
) -> Callable[[], list[Score]]:
    """Start evaluating models on all hosts. The returned function waits for the scores."""
    hosts.wait_for_any()
    models_ref = ray.put([np.asarray(model) for model in models])
    actors = [hosts.all[number].actor for number in hosts.up()]
    size = -(-len(pieces) // len(actors))
    shares = [pieces[k * size : (k + 1) * size] for k in range(len(actors))]
    calls = [(s, a.evaluate.remote(s, models_ref)) for s, a in zip(shares, actors, strict=True) if s]
    return lambda: [score for share, ref in calls for score in _scores(hosts, share, ref, models_ref, max_retries)]


def _scores(hosts: HostGroup, pieces: Sequence[Piece], ref: Any, models_ref: Any, max_retries: int) -> list[Score]:
    """Wait for the scores of a call, and repeat it on another host if its host is lost."""
    for attempt in range(max_retries + 1):
        try:
            scores: list[Score] = ray.get(ref)
            return scores
        except LOST as error:
            last = error
        hosts.replace_dead()
        hosts.wait_for_any()
        up = hosts.up()
        ref = hosts.all[up[attempt % len(up)]].actor.evaluate.remote(pieces, models_ref)
    limit = f"hosts.max_retries = {max_retries}"
    raise RunError(f"an evaluation was lost with its host more than {limit} times: {last_line(last)}")
