"""The cache of client states: the memory budget, uncommitted states, compaction, spilling, and failed writes."""

import random
from pathlib import Path

import numpy as np
import pytest

from raybcgd.client.state_cache import StateCache
from raybcgd.errors import RunError
from raybcgd.messages import FRESH, StateRef
from raybcgd.record.state_layout import StateArray, StateLayout
from raybcgd.record.states import SegmentFolder, new_name

LAYOUT = StateLayout([StateArray("algorithm.c", "<f4", (1000,))])
NO_ROW = np.zeros(LAYOUT.row_bytes, dtype=np.uint8)


def rows_of(*values: float) -> np.ndarray:
    return LAYOUT.pack([{"algorithm.c": np.full(1000, value, dtype=np.float32)} for value in values])


def values_in(rows: np.ndarray) -> list[float]:
    c = LAYOUT.views(rows)["algorithm.c"]
    assert (c == c[:, :1]).all()
    return [float(value) for value in c[:, 0]]


def cache_in(folder: Path, budget_bytes: int = 12_000, local: bool = True) -> StateCache:
    segments = SegmentFolder(str(folder), LAYOUT)
    segments.local = local  # otherwise as on an object store
    return StateCache(segments, budget_bytes, clients=100)


@pytest.mark.parametrize("budget", [0, 4_000, 12_000, 1_000_000])
@pytest.mark.parametrize("local", [True, False])
def test_memory_stays_within_the_budget_and_nothing_is_lost(tmp_path: Path, budget: int, local: bool) -> None:
    cache, rng = cache_in(tmp_path, budget, local), random.Random(1)
    committed: dict[int, tuple[StateRef, float]] = {}
    for index in range(40):
        clients = rng.sample(range(20), 5)
        wanted = [(client, committed.get(client, (FRESH, 0.0))) for client in clients]
        rows = cache.gather([(client, ref) for client, (ref, _) in wanted], rows_of(-1.0)[0])
        assert values_in(rows) == [-1.0 if ref == FRESH else value for _, (ref, value) in wanted]
        new = [float(100 * index + client) for client in clients]
        refs = cache.put(index, clients, rows_of(*new))
        cache.flush()
        assert cache.bytes <= budget
        if rng.random() < 0.7:  # the other rounds do not commit
            committed.update({client: pair for client, *pair in zip(clients, refs, new, strict=True)})  # type: ignore[misc]


def test_gathered_rows_are_copies(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    (ref,) = cache.put(0, [1], rows_of(1.0))
    cache.gather([(1, ref)], NO_ROW)[:] = 0
    assert values_in(cache.gather([(1, ref)], NO_ROW)) == [1.0]


def test_a_cached_state_is_not_read_from_its_file(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    refs = cache.put(0, [1, 2], rows_of(1.0, 2.0))
    cache.flush()
    next(tmp_path.iterdir()).unlink()
    assert values_in(cache.gather([(2, refs[1]), (1, refs[0])], NO_ROW)) == [2.0, 1.0]


def test_an_uncommitted_state_is_not_returned(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    (committed,) = cache.put(0, [1], rows_of(1.0))
    cache.end_call()
    cache.put(1, [1], rows_of(2.0))  # of a round that did not commit
    cache.flush()
    assert values_in(cache.gather([(1, committed)], NO_ROW)) == [1.0]
    # The same after compaction moved the committed row.
    merged = SegmentFolder(str(tmp_path), LAYOUT).create(name := new_name(1, merged=True))
    merged.append([1], rows_of(1.0), [committed.checksum])
    merged.close()
    assert values_in(cache.gather([(1, StateRef(name, 0, committed.checksum))], NO_ROW)) == [1.0]


@pytest.mark.parametrize("budget", [0, 12_000])
def test_compaction_does_not_empty_the_cache(tmp_path: Path, budget: int) -> None:
    cache = cache_in(tmp_path, budget, local=False)
    (ref,) = cache.put(0, [1], rows_of(1.0))
    cache.flush()
    moved = StateRef(new_name(5, merged=True), 3, ref.checksum)  # there is no such file
    assert values_in(cache.gather([(1, moved)], NO_ROW)) == [1.0]


def test_states_of_a_remote_folder_spill_to_this_machine(tmp_path: Path) -> None:
    cache = cache_in(tmp_path, budget_bytes=4_000, local=False)
    refs = [ref for client in range(3) for ref in cache.put(0, [client], rows_of(client))]
    cache.flush()
    next(tmp_path.iterdir()).unlink()
    assert values_in(cache.gather(list(enumerate(refs)), NO_ROW)) == [0.0, 1.0, 2.0]


def test_a_call_writes_one_segment_and_a_call_without_rows_none(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    for index in range(2):
        for client in range(3):
            cache.put(index, [client], rows_of(1.0))
        cache.end_call()
        cache.end_call()
    cache.flush()
    assert sorted(path.name[:7] for path in tmp_path.iterdir()) == ["000000-", "000001-"]


def test_a_failed_write_is_reported_once_in_one_line_and_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    cache = cache_in(folder)
    cache.put(0, [1], rows_of(1.0))
    cache.flush()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("not a folder")
    for _ in range(3):
        cache.put(1, [1], rows_of(2.0))
    with pytest.raises(RunError, match=r"^cannot write client states to .*/states/000001-\w+\.seg \(.*\); make room"):
        cache.flush()
    folder.unlink()
    folder.mkdir()
    (ref,) = cache.put(2, [1], rows_of(3.0))
    cache.flush()
    assert [path.name for path in folder.iterdir()] == [ref.segment]
