"""Dealing jobs: largest first, at home where that costs nothing, and even in the end."""

import numpy as np
import pytest

from raybcgd.engine.ray.scheduling import Deal, Times
from raybcgd.messages import Job


def loads(deal: Deal, hosts: list[int], seconds: dict[int, float]) -> dict[int, float]:
    """Hand everything out, always to the host that would be idle first."""
    busy = dict.fromkeys(hosts, 0.0)
    waiting = set(hosts)
    while waiting:
        host = min(waiting, key=lambda h: busy[h])
        chunk = deal.next_chunk(host, in_seconds=True)
        if not chunk:
            waiting.discard(host)
        busy[host] += sum(seconds[job.client] for job in chunk)
    return busy


@pytest.mark.parametrize("hosts", [2, 3, 8])
def test_log_normal_clients_are_balanced(hosts: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        seconds = dict(enumerate(rng.lognormal(sigma=1.0, size=40).tolist()))
        deal = Deal(range(hosts), fixed=False, stack=0)
        deal.place([Job(c, None) for c in seconds], list(seconds.values()), homes={})
        busy = loads(deal, list(range(hosts)), seconds)
        assert deal.left == 0
        fair = max(sum(seconds.values()) / hosts, max(seconds.values()))
        assert max(busy.values()) <= 1.15 * fair


def test_wrong_predictions_are_made_good_by_idle_hosts() -> None:
    seconds = {c: 10.0 if c < 10 else 0.1 for c in range(40)}
    deal = Deal([0, 1], fixed=False, stack=0)
    deal.place([Job(c, None) for c in seconds], [1.0] * 40, homes={c: int(c >= 10) for c in seconds})
    busy = loads(deal, [0, 1], seconds)
    assert max(busy.values()) <= 0.65 * sum(seconds.values())


def test_clients_stay_at_home_while_it_is_no_bottleneck() -> None:
    homes = {c: c % 2 for c in range(10)}
    deal = Deal([0, 1], fixed=False, stack=0)
    assert deal.place([Job(c, None) for c in range(10)], [1.0] * 10, homes) == 0
    assert homes == {c: c % 2 for c in range(10)}


def test_clients_move_when_their_home_is_the_bottleneck() -> None:
    homes = dict.fromkeys(range(10), 0)
    moved = Deal([0, 1], fixed=False, stack=0).place([Job(c, None) for c in range(10)], [1.0] * 10, homes)
    assert moved == 5
    assert sorted(homes.values()) == [0] * 5 + [1] * 5


def test_the_jobs_of_a_host_that_leaves_come_back() -> None:
    deal = Deal([0, 1], fixed=False, stack=0)
    deal.place([Job(c, None) for c in range(10)], [1.0] * 10, homes={})
    back = deal.leave(0)
    assert len(back) == 5
    assert deal.left == 5


def test_a_client_is_predicted_from_its_own_time_then_from_others() -> None:
    times = Times()
    assert times.predict(1, steps=30) == 3 * times.predict(2, steps=10)
    times.measured(1, steps=10, seconds=5.0)
    assert times.predict(1, steps=10) == 5.0
    assert times.predict(2, steps=20) == 10.0
