"""Client states: immutable versions, the memory budget, and detection of damaged files."""

from pathlib import Path

import numpy as np
import pytest

from raybcgd.client.state_cache import StateCache
from raybcgd.errors import RunError
from raybcgd.messages import StateRef
from raybcgd.record.states import StateFolder


def state(value: float, size: int = 1000) -> dict[str, np.ndarray]:
    return {"algorithm.c": np.full(size, value, dtype=np.float32)}


def test_versions_do_not_overwrite_each_other(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path))
    first, second = folder.write(7, 1, state(1.0)), folder.write(7, 2, state(2.0))
    assert folder.read(7, first)["algorithm.c"][0] == 1.0
    assert folder.read(7, second)["algorithm.c"][0] == 2.0


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path))
    ref = folder.write(7, 1, state(1.0))
    (path,) = tmp_path.rglob("7-1.safetensors")
    path.write_bytes(path.read_bytes()[:-4] + b"\x00\x00\x00\x01")
    with pytest.raises(RunError, match="client 7 after round 0 is damaged"):
        folder.read(7, ref)
    path.unlink()
    with pytest.raises(RunError, match="client 7 after round 0 is missing"):
        folder.read(7, ref)


def test_memory_stays_within_the_budget_and_nothing_is_lost(tmp_path: Path) -> None:
    cache = StateCache(StateFolder(str(tmp_path)), budget_bytes=10_000)
    refs = {client: cache.put(client, 1, state(client)) for client in range(20)}
    assert cache.bytes <= 10_000
    for client, ref in refs.items():
        assert cache.get(client, ref)["algorithm.c"][0] == client


def test_an_uncommitted_version_is_not_read(tmp_path: Path) -> None:
    cache = StateCache(StateFolder(str(tmp_path)), budget_bytes=10_000)
    committed = cache.put(1, 1, state(1.0))
    cache.put(1, 2, state(2.0))  # from a round that did not commit
    assert cache.get(1, committed)["algorithm.c"][0] == 1.0


def test_states_of_a_remote_folder_spill_to_this_machine(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path))
    folder.local = False  # as on an object store
    cache = StateCache(folder, budget_bytes=4_000)
    refs = {client: cache.put(client, 1, state(client)) for client in range(3)}
    folder.remove([(client, 1) for client in refs])
    assert [cache.get(client, ref)["algorithm.c"][0] for client, ref in refs.items()] == [0, 1, 2]
    assert isinstance(cache.get(0, refs[0])["algorithm.c"], np.memmap)


def test_only_wanted_versions_are_kept(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path))
    kept, gone = folder.write(1, 1, state(1.0)), folder.write(1, 2, state(2.0))
    folder.keep_only({(1, 1)})
    assert folder.read(1, kept)["algorithm.c"][0] == 1.0
    with pytest.raises(RunError, match="missing"):
        folder.read(1, StateRef(*gone))
