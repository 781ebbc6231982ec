"""Replies of hosts: bytes in parts that Ray sends without its object store, or whole results."""

import numpy as np
import pytest

from raybcgd.engine.ray.host_actor import opened, replied, reply_parts
from raybcgd.messages import FRESH, CallResult, HostLoad, Outcome, Partial, SumKey

RAY_LIMIT = 100 * 1024


def result(floats: int, payload: np.ndarray | None = None) -> CallResult:
    sums = {SumKey("delta", -1): {0: np.arange(floats, dtype=np.float64)}}
    return CallResult([Outcome(3, payload, FRESH, 0.5, 1.25)], HostLoad(), Partial((3,), sums))


@pytest.mark.parametrize("floats", [1, 7850, 15_700, 60_000])
def test_a_reply_survives_its_parts(floats: int) -> None:
    sent = result(floats)
    parts = reply_parts(8 * floats)
    reply = replied(sent, parts)
    cut = (reply,) if parts == 1 else reply
    assert len(cut) == parts
    assert all(isinstance(part, bytes) and len(part) < RAY_LIMIT for part in cut)
    back = opened(*cut)
    assert back.outcomes == sent.outcomes
    assert back.partial is not None
    assert back.partial.clients == (3,)
    assert np.array_equal(back.partial.sums[SumKey("delta", -1)][0], np.arange(floats))


@pytest.mark.parametrize(("planned", "floats", "payload"), [(2, 100_000, None), (2, 1, np.zeros(4, np.uint8))])
def test_what_does_not_fit_is_sent_whole(planned: int, floats: int, payload: np.ndarray | None) -> None:
    sent = result(floats, payload)
    reply = replied(sent, planned)
    assert reply[0] is sent
    assert len(reply) == planned
    assert opened(*reply) is sent


def test_large_sums_are_one_object() -> None:
    assert reply_parts(2**20) == 1
