"""Scheduling: hosts are balanced, and clients stay on their home host if that costs nothing."""

import numpy as np
import pytest

from raybcgd.engine.ray.scheduling import TaskQueues, TaskTimes
from raybcgd.messages import ClientTask


def tasks(count: int) -> list[ClientTask]:
    return [ClientTask(client, None) for client in range(count)]


def queues_of(*hosts: int) -> TaskQueues:
    queues = TaskQueues(fixed_homes=False, stack=0)
    for host in hosts:
        queues.add_host(host)
    return queues


def simulate(queues: TaskQueues, hosts: list[int], seconds: dict[int, float]) -> dict[int, float]:
    """Run all tasks, each on the host that becomes idle first, and return the busy time per host."""
    busy = dict.fromkeys(hosts, 0.0)
    waiting = set(hosts)
    while waiting:
        host = min(waiting, key=lambda h: busy[h])
        chunk = queues.take_chunk(host, in_seconds=True)
        if not chunk:
            waiting.discard(host)
        busy[host] += sum(seconds[task.client] for task in chunk)
    return busy


@pytest.mark.parametrize("hosts", [2, 3, 8])
def test_log_normal_clients_are_balanced(hosts: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        seconds = dict(enumerate(rng.lognormal(sigma=1.0, size=40).tolist()))
        queues = queues_of(*range(hosts))
        queues.assign(tasks(40), list(seconds.values()), homes={})
        busy = simulate(queues, list(range(hosts)), seconds)
        assert queues.num_waiting == 0
        fair = max(sum(seconds.values()) / hosts, max(seconds.values()))
        assert max(busy.values()) <= 1.15 * fair


def test_idle_hosts_take_tasks_when_predictions_were_wrong() -> None:
    seconds = {c: 10.0 if c < 20 and c % 2 else 0.1 for c in range(40)}
    queues = queues_of(0, 1)
    queues.assign(tasks(40), [1.0] * 40, homes={c: int(c >= 20) for c in seconds})
    busy = simulate(queues, [0, 1], seconds)
    assert max(busy.values()) <= 0.65 * sum(seconds.values())


def test_clients_stay_home_if_that_host_is_not_the_bottleneck() -> None:
    homes = {c: c % 2 for c in range(10)}
    queues = queues_of(0, 1)
    assert queues.assign(tasks(10), [1.0] * 10, homes) == 0
    assert homes == {c: c % 2 for c in range(10)}


def test_clients_move_if_their_home_is_the_bottleneck() -> None:
    homes = dict.fromkeys(range(10), 0)
    moved = queues_of(0, 1).assign(tasks(10), [1.0] * 10, homes)
    assert moved == 5
    assert sorted(homes.values()) == [0] * 5 + [1] * 5


def test_random_cohorts_move_only_the_clients_that_make_a_host_the_bottleneck() -> None:
    """With equal tasks, only the clients that a home has beyond its share move. Other moves would gain nothing."""
    rng, homes, moved, surplus = np.random.default_rng(0), {client: client % 2 for client in range(100)}, 0, 0
    for _ in range(200):
        cohort = rng.choice(100, size=10, replace=False).tolist()
        surplus += abs(sum(homes[client] for client in cohort) - 5)
        queues = queues_of(0, 1)
        moved += queues.assign([ClientTask(client, None) for client in cohort], [1.0] * 10, homes)
        assert sorted(homes[client] for client in cohort) == [0] * 5 + [1] * 5
    assert moved == surplus


def test_noisy_predictions_move_few_clients() -> None:
    rng, homes, moved = np.random.default_rng(0), dict[int, int](), 0
    for _ in range(200):
        cohort, seconds = rng.choice(100, size=10, replace=False).tolist(), rng.lognormal(sigma=0.2, size=10).tolist()
        queues = queues_of(0, 1)
        moved += queues.assign([ClientTask(client, None) for client in cohort], seconds, homes)
        loads = [queues._queues[host].load for host in (0, 1)]
        assert max(loads) <= 0.5 * sum(loads) + 0.5 * max(seconds)
    assert moved < 0.18 * 2000, "a third of the clients moved when hosts were kept level while they were filled"


def test_removing_a_host_returns_its_tasks() -> None:
    queues = queues_of(0, 1)
    queues.assign(tasks(10), [1.0] * 10, homes={})
    assert len(queues.remove_host(0)) == 5
    assert queues.num_waiting == 5


def test_predictions_use_the_clients_own_times_or_else_the_mean() -> None:
    times = TaskTimes(stacked=False)
    assert times.predict(1, steps=30) == 3 * times.predict(2, steps=10)
    times.add(1, steps=10, seconds=5.0)
    assert times.predict(1, steps=10) == 5.0
    assert times.predict(2, steps=20) == 10.0


def test_stacked_clients_all_get_the_mean_time_per_step() -> None:
    times = TaskTimes(stacked=True)
    times.add(1, steps=10, seconds=5.0)
    times.add(2, steps=10, seconds=6.0)
    assert times.predict(1, steps=10) == times.predict(2, steps=10)


def test_stacks_of_equal_clients_keep_their_size() -> None:
    rng, homes = np.random.default_rng(0), {client: client % 2 for client in range(1000)}
    for _ in range(30):
        cohort, queues = rng.choice(1000, size=100, replace=False).tolist(), queues_of(0, 1)
        queues.assign([ClientTask(client, None) for client in cohort], [1.0] * 100, homes)
        assert [len(queues.remove_host(host)) for host in (0, 1)] == [50, 50]
