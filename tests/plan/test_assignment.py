"""The assignment of blocks to clients: at random, by bandwidth or by need."""

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybcgd import ConfigError, run
from raybcgd.plan.assignment import by_bandwidth, by_need, evenly
from raybcgd.plan.cohort import draw_cohort
from raybcgd.plan.links import simulated_seconds, uplinks
from raybcgd.plan.settings import LinksConfig
from raybcgd.problem import prepare
from tests.conftest import small


def test_random_assignment_is_stable_across_versions() -> None:
    """Old runs can be repeated only if the cohorts stay the same."""
    assert draw_cohort(0, 0, 20, 4, 2) == ((11, 1), (13, 0), (14, 0), (19, 1))
    assert [m.block for m in draw_cohort(7, 11, 50, 9, 3)] == [0, 1, 0, 1, 0, 2, 2, 2, 1]
    assert [m.client for m in draw_cohort(7, 11, 50, 9, None)] == [4, 5, 7, 9, 16, 18, 21, 31, 37]


def test_fewer_clients_than_blocks_get_different_blocks_and_all_blocks_are_used_over_time() -> None:
    rounds = [[member.block for member in draw_cohort(3, k, 20, 2, 5)] for k in range(40)]
    assert all(len(set(blocks)) == 2 for blocks in rounds)
    assert {block for blocks in rounds for block in blocks} == set(range(5))


def test_the_blocks_that_get_one_client_more_are_drawn_per_round() -> None:
    counts = np.array([np.bincount([m.block for m in draw_cohort(3, k, 20, 10, 6)], minlength=6) for k in range(300)])
    assert (np.sort(counts, axis=1) == [1, 1, 2, 2, 2, 2]).all()
    assert counts.mean(axis=0) == pytest.approx(np.full(6, 10 / 6), abs=0.1)


def test_blocks_without_a_client_do_not_change(tmp_path: Path) -> None:
    few = {"clients_per_block": None, "clients_per_round": 1, "cover": "some"}
    with pytest.raises(ConfigError, match=r"is less than the 3 blocks; raise it to at least 3, .* cohort\.cover"):
        prepare(small(cohort={**few, "cover": "all"}))
    with pytest.raises(ConfigError, match=r'cover = "some" needs assignment = "random"'):
        small(cohort={**few, "assignment": "need"})
    for algorithm in ("fedbcgd", "fedbcgd+"):
        result = run(small(algorithm={"name": algorithm}, cohort=few, rounds=8), out=tmp_path / algorithm)
        for record in result.records:
            (member,) = record.participants
            assert [moved > 0 for moved in record.blocks.movement[:3]] == [member.block == block for block in range(3)]
        assert {record.participants[0].block for record in result.records} == {0, 1, 2}


@given(
    rates=st.lists(st.floats(0.1, 1e6), min_size=2, max_size=6),
    sizes=st.lists(st.integers(1, 10**6), min_size=2, max_size=3),
)
def test_no_other_even_assignment_makes_the_slowest_upload_faster(rates: list[float], sizes: list[int]) -> None:
    clients = list(range(len(rates)))
    blocks = by_bandwidth(np.array(rates), sizes)(clients, len(sizes), np.random.default_rng(0))
    even = evenly(clients, len(sizes), np.random.default_rng(0))
    assert sorted(blocks) == sorted(even), "the number of clients per block must not change"

    def slowest(assigned: Any) -> float:
        return max(sizes[block] / rate for block, rate in zip(assigned, rates, strict=True))

    assert slowest(blocks) == min(slowest(other) for other in set(permutations(blocks)))


@given(
    need=st.lists(st.floats(0, 1e6), min_size=1, max_size=8),
    spare=st.integers(0, 40),
)
def test_every_block_has_a_client_and_blocks_with_more_need_have_at_least_as_many(
    need: list[float], spare: int
) -> None:
    blocks = by_need(np.array(need))(list(range(len(need) + spare)), len(need), np.random.default_rng(0))
    counts = np.bincount(blocks, minlength=len(need))
    assert counts.sum() == len(need) + spare
    assert counts.min() >= 1
    for a in range(len(need)):
        for b in range(len(need)):
            if need[a] > need[b] and sum(need) > 0:
                assert counts[a] >= counts[b]


def test_links_are_configured_or_drawn() -> None:
    assert uplinks(LinksConfig(uplinks=(1.0, 2.0)), 2, 0).tolist() == [1.0, 2.0]
    drawn = uplinks(LinksConfig(median=5e5, sigma=0.7), 20_000, 0)
    assert np.median(drawn) == pytest.approx(5e5, rel=0.03)
    assert np.log(drawn).std() == pytest.approx(0.7, rel=0.03)
    assert np.array_equal(drawn, uplinks(LinksConfig(median=5e5, sigma=0.7), 20_000, 0))
    with pytest.raises(ConfigError, match=r"cohort\.links\.uplinks has 3 entries, but .* 20"):
        prepare(small(cohort={"links": {"uplinks": [1.0, 2.0, 3.0]}}))
    with pytest.raises(ConfigError, match=r"needs the clients' bandwidth"):
        small(cohort={"assignment": "bandwidth"})


def test_simulated_time_is_that_of_the_slowest_client() -> None:
    assert simulated_seconds(LinksConfig(), [10.0, 1.0], [100, 5], 1000) == 10.0
    assert simulated_seconds(LinksConfig(downlink_factor=10), [10.0, 1.0], [100, 5], 1000) == 105.0
    assert simulated_seconds(LinksConfig(), [], [], 0) == 0.0


def test_slow_clients_get_small_blocks_and_the_round_takes_less_time(tmp_path: Path) -> None:
    links = {"median": 1e4, "sigma": 1.5}
    runs = {
        name: run(small(cohort={"assignment": name, "links": links}, rounds=6), out=tmp_path / name)
        for name in ("random", "bandwidth")
    }
    problem, _ = prepare(small(cohort={"links": links}))
    rates, sizes = problem.uplinks, [block.size for block in problem.layout.blocks]
    assert rates is not None
    for even, fast in zip(runs["random"].records, runs["bandwidth"].records, strict=True):
        assert {p.client for p in even.participants} == {p.client for p in fast.participants}
        assert fast.traffic.simulated_seconds is not None
        assert even.traffic.simulated_seconds is not None
        assert fast.traffic.simulated_seconds <= even.traffic.simulated_seconds
        ordered = sorted(fast.participants, key=lambda p: rates[p.client])
        assert [sizes[p.block or 0] for p in ordered] == sorted(sizes[p.block or 0] for p in ordered)
        seconds = max(
            4 * (sizes[p.block or 0] + problem.layout.shared.size) / rates[p.client] for p in even.participants
        )
        assert even.traffic.simulated_seconds == pytest.approx(seconds)
    faster, slower = (runs[name].summary["simulated_seconds"] for name in ("bandwidth", "random"))
    assert faster < 0.9 * slower


def test_links_alone_do_not_change_the_weights(tmp_path: Path) -> None:
    plain, linked = (
        run(small(cohort=cohort), out=tmp_path / str(k)) for k, cohort in enumerate(({}, {"links": {"sigma": 2.0}}))
    )
    assert plain.summary["sha256"] == linked.summary["sha256"]
    assert plain.summary["simulated_seconds"] is None
    assert plain.records[0].traffic.simulated_seconds is None


NEED: dict[str, Any] = {"cohort": {"assignment": "need", "clients_per_block": 4}}


def test_blocks_that_move_more_get_more_clients(tmp_path: Path) -> None:
    result = run(small(rounds=6, **NEED), out=tmp_path / "run")
    counts = [np.bincount([p.block or 0 for p in record.participants], minlength=3) for record in result.records]
    assert counts[0].tolist() == [4, 4, 4], "no block has moved yet"
    assert all(count.sum() == 12 and count.min() >= 1 for count in counts)
    # The first block of this network is by far the largest, and it moves furthest.
    assert all(count[0] == count.max() > 4 for count in counts[1:])


def test_a_resumed_run_assigns_the_same_blocks(tmp_path: Path) -> None:
    whole = run(small(rounds=8, **NEED), out=tmp_path / "whole")
    run(small(rounds=4, **NEED), out=tmp_path / "parts")
    assert (tmp_path / "parts" / "checkpoints" / "round-000004" / "history.safetensors").exists()
    parts = run(small(rounds=8, **NEED), out=tmp_path / "parts", resume=True)
    assert parts.summary["sha256"] == whole.summary["sha256"]
    drawn = [[(p.client, p.block) for p in record.participants] for record in parts.records]
    assert drawn == [[(p.client, p.block) for p in record.participants] for record in whole.records]


def test_assignments_have_no_effect_on_methods_without_blocks(tmp_path: Path) -> None:
    runs = [
        run(small(algorithm={"name": "fedavg"}, cohort=cohort), out=tmp_path / str(k))
        for k, cohort in enumerate(({}, {"assignment": "need"}, {"assignment": "bandwidth", "links": {}}))
    ]
    assert len({result.summary["sha256"] for result in runs}) == 1


def test_a_method_without_blocks_may_sample_fewer_clients_than_blocks() -> None:
    few = {"clients_per_block": None, "clients_per_round": 1}
    assert prepare(small(algorithm={"name": "fedavg"}, cohort=few))[0].cohort_size == 1
