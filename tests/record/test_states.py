"""Client states in segments: layout, reading, damage, and files that are not ours."""

import threading
from pathlib import Path

import numpy as np
import pytest

from raybcgd.errors import RunError
from raybcgd.messages import StateRef
from raybcgd.record.segment_writer import SegmentWriter
from raybcgd.record.state_layout import StateArray, StateLayout
from raybcgd.record.states import SegmentFolder, new_name

LAYOUT = StateLayout(
    [
        StateArray("algorithm.c", "<f4", (7,)),
        StateArray("algorithm.rounds", "<i8", (1,)),
        StateArray("algorithm.none", "<f4", (0,)),
        StateArray("algorithm.phases", "<f8", (3, 5)),
    ]
)


def random_rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, LAYOUT.row_bytes), dtype=np.uint8)


def written(folder: SegmentFolder, clients: list[int], rows: np.ndarray, index: int = 3) -> list[StateRef]:
    writer = SegmentWriter(folder)
    refs = writer.append(index, clients, rows)
    writer.flush()
    return refs


@pytest.fixture
def folder(tmp_path: Path) -> SegmentFolder:
    return SegmentFolder(str(tmp_path / "states"), LAYOUT)


def test_views_of_rows_are_aligned_writable_and_not_copied() -> None:
    rows = np.zeros((4, LAYOUT.row_bytes), dtype=np.uint8)
    views = LAYOUT.views(rows)
    assert {name: view.shape for name, view in views.items()} == {
        "algorithm.c": (4, 7),
        "algorithm.rounds": (4, 1),
        "algorithm.none": (4, 0),
        "algorithm.phases": (4, 3, 5),
    }
    assert LAYOUT.row_bytes == 32 + 16 + 0 + 128
    for name, view in views.items():
        view[...] = np.arange(view.size).reshape(view.shape)
        if view.size:
            assert np.shares_memory(view, rows), name
            assert all((row.ctypes.data - rows.ctypes.data) % 16 == 0 for row in view)
    states = [{name: view[k].copy() for name, view in views.items()} for k in range(4)]
    np.testing.assert_array_equal(LAYOUT.pack(states), rows)
    rows.flags.writeable = False
    assert not LAYOUT.views(rows)["algorithm.c"].flags.writeable
    assert LAYOUT.views(rows[:0])["algorithm.phases"].shape == (0, 3, 5)


def test_a_state_of_another_shape_is_refused() -> None:
    arrays = LAYOUT.views(np.zeros((1, LAYOUT.row_bytes), dtype=np.uint8))
    state = {name: array[0] for name, array in arrays.items()}
    with pytest.raises(ValueError, match=r"algorithm.c has the shape \(1,\); return it with the declared shape \(7,\)"):
        LAYOUT.pack([{**state, "algorithm.c": np.zeros(1, np.float32)}])


def test_rows_come_back_in_the_order_asked_for(folder: SegmentFolder) -> None:
    rows = random_rows(30)
    refs = [ref for k in range(3) for ref in written(folder, list(range(10 * k, 10 * k + 10)), rows[10 * k :][:10])]
    order = [*np.random.default_rng(5).permutation(30)[:17].tolist(), 4, 5, 6, 7]
    np.testing.assert_array_equal(folder.read([(k, refs[k]) for k in order]), rows[order])
    assert folder.read([]).shape == (0, LAYOUT.row_bytes)


def test_writes_run_in_the_background_within_a_bound(folder: SegmentFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    create, allowed, created = SegmentFolder.create, threading.Event(), threading.Event()

    def delayed(self: SegmentFolder, name: str) -> object:
        created.set()
        assert allowed.wait(10)
        return create(self, name)

    monkeypatch.setattr(SegmentFolder, "create", delayed)
    writer, rows = SegmentWriter(folder), random_rows(5)
    refs = [ref for k in range(3) for ref in writer.append(0, [k], rows[k : k + 1])]  # does not wait for the files
    assert created.wait(10)
    rest = threading.Thread(target=lambda: refs.extend(writer.append(0, [3], rows[3:4])))
    rest.start()
    rest.join(0.2)
    assert rest.is_alive(), "a third write in flight waits"
    assert folder.names() == []
    allowed.set()
    rest.join()
    writer.flush()
    np.testing.assert_array_equal(folder.read(list(enumerate(refs))), rows[:4])


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "remove"])
def test_a_damaged_or_missing_row_is_named(folder: SegmentFolder, damage: str) -> None:
    refs = written(folder, [7, 8, 9], random_rows(3))
    path = Path(folder.path(refs[0].segment))
    content = bytearray(path.read_bytes())
    content[16 + LAYOUT.row_bytes + 5] ^= 1
    new = {"flip": content, "cut": content[: 16 + LAYOUT.row_bytes + 20], "empty": b""}
    path.unlink() if damage == "remove" else path.write_bytes(new[damage])
    what = "missing" if damage == "remove" else "damaged"
    with pytest.raises(RunError, match=rf"client 8 as of round 4 is {what} at .*/states/000003-\w+\.seg; restore"):
        folder.read([(8, refs[1])])
    if damage in ("flip", "cut"):
        assert len(folder.read([(7, refs[0])])) == 1


@pytest.mark.parametrize("rows", [3, 10_000])
def test_a_footer_names_clients_and_checksums(folder: SegmentFolder, rows: int) -> None:
    clients = np.random.default_rng(1).permutation(10**6)[:rows].tolist()
    refs = written(folder, clients, random_rows(rows))
    (footer,) = folder.footers([refs[0].segment]).values()
    assert footer.clients.tolist() == clients
    assert footer.checksums.tolist() == [ref.checksum for ref in refs]


@pytest.mark.parametrize("where", [0.99, -1, -6])
def test_a_damaged_footer_is_found(folder: SegmentFolder, where: float) -> None:
    name = written(folder, [7, 8, 9], random_rows(3))[0].segment
    path = Path(folder.path(name))
    content = bytearray(path.read_bytes())
    content[int(where if where < 0 else where * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match="footer does not match"):
        folder.footers([name])
    for size in (0, 5, 8, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(RunError, match="are damaged"):
            folder.footers([name])
    path.unlink()
    with pytest.raises(RunError, match="are missing"):
        folder.footers([name])


def test_a_segment_that_lost_rows_is_found(folder: SegmentFolder) -> None:
    name = written(folder, [7, 8, 9], random_rows(3))[0].segment
    path = Path(folder.path(name))
    content = path.read_bytes()
    path.write_bytes(content[:16] + content[16 + LAYOUT.row_bytes :])
    with pytest.raises(RunError, match="wrong size"):
        folder.footers([name])


def test_states_of_another_layout_are_refused(folder: SegmentFolder, tmp_path: Path) -> None:
    name = written(folder, [7], random_rows(1))[0].segment
    other = SegmentFolder(str(tmp_path / "states"), StateLayout(LAYOUT.arrays[:1]))
    with pytest.raises(RunError, match="another method, codec or model"):
        other.footers([name])


def test_a_name_in_a_ledger_cannot_leave_the_folder(folder: SegmentFolder) -> None:
    with pytest.raises(RunError, match="not the name of a segment"):
        folder.footers(["../../000003-0123456789abcdef.seg"])


def test_only_segments_are_listed(folder: SegmentFolder, tmp_path: Path) -> None:
    name, part = written(folder, [7], random_rows(1))[0].segment, f"{new_name(4)}.part"
    for other in (part, "notes.txt", "000003.seg", f"{new_name(3)}.bak"):
        (tmp_path / "states" / other).write_text("mine")
    (tmp_path / "states" / new_name(3)).mkdir()
    assert folder.names() == [name]
    assert sorted(folder.names(parts=True)) == sorted([name, part])
