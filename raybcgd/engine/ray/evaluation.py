"""[Ray] Evaluate models on the client hosts, and retry calls that are lost with a host."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray
from torch import Tensor

from raybcgd.engine.ray.hosts import LOST, HostGroup
from raybcgd.errors import RunError, last_line
from raybcgd.messages import HostLost, Piece, Score


def evaluate(
    hosts: HostGroup, models: Sequence[Tensor], pieces: Sequence[Piece], max_retries: int
) -> Callable[[], list[Score]]:
    """Start evaluating models on all hosts. The returned function waits for the scores."""
    hosts.wait_for_any()
    models_ref = ray.put([np.asarray(model) for model in models])
    up = hosts.up()
    size = -(-len(pieces) // len(up))
    calls = []
    for k, number in enumerate(up):
        if share := pieces[k * size : (k + 1) * size]:
            calls.append((share, number, hosts.all[number].actor.evaluate.remote(share, models_ref)))
    return lambda: [score for call in calls for score in _scores(hosts, *call, models_ref, max_retries)]


def _scores(
    hosts: HostGroup, pieces: Sequence[Piece], number: int, ref: Any, models_ref: Any, max_retries: int
) -> list[Score]:
    """Wait for the scores of a call, and retry it on another host if its host is lost or its device fails."""
    for attempt in range(max_retries + 1):
        try:
            scores: list[Score] | HostLost = ray.get(ref)
            if not isinstance(scores, HostLost):
                return scores
            last = scores.cause
            if number in hosts.all and not hosts.all[number].unfinished:  # otherwise, its next call reports it
                hosts.replace(number)
        except LOST as error:
            last = last_line(error)
        hosts.replace_dead()
        hosts.wait_for_any()
        up = [other for other in hosts.up() if other != number] or hosts.up()
        number = up[attempt % len(up)]
        ref = hosts.all[number].actor.evaluate.remote(pieces, models_ref)
    limit = f"hosts.max_retries = {max_retries}"
    raise RunError(f"an evaluation was lost with its host more than {limit} times: {last}")
