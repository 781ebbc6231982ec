"""Compaction: few files, the same states, and a run that can be killed at any time."""

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raybcgd import RoundRecord, run
from raybcgd.messages import StateRef
from raybcgd.record import compaction
from raybcgd.record.checkpoint import Checkpoints, Position
from raybcgd.record.compaction import Compactor
from raybcgd.record.ledger import Ledger
from raybcgd.record.rounds import Traffic
from raybcgd.record.segment_writer import SegmentWriter
from raybcgd.record.state_layout import StateArray, StateLayout
from raybcgd.record.states import SegmentFolder, is_merged
from tests.conftest import small
from tests.record.test_checkpoint import interrupted

LAYOUT = StateLayout([StateArray("algorithm.c", "<f8", (10,))])
CLIENTS = 200


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact whenever there are more than three poor segments, in batches of two rows."""
    monkeypatch.setattr(compaction, "MAX_POOR", 3)
    monkeypatch.setattr(compaction, "_BATCH_BYTES", 2 * LAYOUT.row_bytes)


def wait_for(compactor: Compactor) -> None:
    job = compactor._job
    if job is not None:
        job.result.exception(timeout=10)


class Rounds:
    """Rounds that write random states."""

    def __init__(self, folder: Path) -> None:
        self.folder = SegmentFolder(str(folder / "states"), LAYOUT)
        self.checkpoints = Checkpoints(str(folder), 2, {}, LAYOUT)
        self.ledger, self.writer = Ledger.fresh(CLIENTS), SegmentWriter(self.folder)
        self.expected = np.zeros((CLIENTS, LAYOUT.row_bytes), dtype=np.uint8)
        self.rounds = 0
        self.saved: list[Ledger] = []

    def run(self, calls: int = 2, per_call: int = 5) -> None:
        rng = np.random.default_rng(self.rounds)
        clients = rng.permutation(CLIENTS)[: calls * per_call].reshape(calls, per_call).tolist()
        for some in clients:
            rows = rng.integers(0, 256, (per_call, LAYOUT.row_bytes), dtype=np.uint8)
            refs = self.writer.append(self.rounds, some, rows)
            self.writer.end()
            self.ledger.commit(dict(zip(some, refs, strict=True)))
            self.expected[some] = rows
        self.writer.flush()
        self.rounds += 1

    def save(self) -> None:
        self.saved = [*self.saved, self.ledger.snapshot()][-2:]
        log = "".join(f"{_record(index).model_dump_json()}\n" for index in range(self.rounds)).encode()
        self.checkpoints.save(Position(self.rounds, {"x": np.zeros(1)}, self.saved[-1], 0.0, log=log))

    def check(self, ledger: Ledger) -> None:
        clients = ledger.clients.tolist()
        found = self.folder.read([(client, ledger[client]) for client in clients])
        np.testing.assert_array_equal(found, self.expected[clients])


def _record(index: int) -> RoundRecord:
    """Return the record of a round in which nothing happened."""
    none = {"upload_floats": (), "upload_bytes": (), "download_floats": (), "drift_diversity": (), "movement": ()}
    required = [name for name, field in Traffic.model_fields.items() if field.is_required()]
    timing = {"seconds": 0.0, "stage_seconds": {}}
    return RoundRecord.model_validate(
        {
            "round": index,
            "lr": 0.1,
            "participants": (),
            "quality": {},
            "traffic": dict.fromkeys(required, 0),
            "blocks": none,
            "timing": timing,
            "hosts": {"up": 1},
        }
    )


@pytest.mark.parametrize("every", [0, 3])
def test_files_stay_few_and_states_the_same(tmp_path: Path, eager: None, every: int) -> None:
    work, most, merged = Rounds(tmp_path), 0, 0
    rng = random.Random(3)
    for _ in range(150):
        work.run()
        if every and work.rounds % every == 0:
            work.save()
        work.checkpoints.maintain(work.ledger, work.rounds)
        if rng.random() < 0.5:  # otherwise, rounds commit while compaction runs
            wait_for(work.checkpoints._compactor)
        work.check(work.ledger)
        files = work.folder.names()
        most, merged = max(most, len(files)), merged + any(is_merged(name) for name in files)
        assert set(work.ledger.names).union(*(saved.names for saved in work.saved)) <= set(files)
    assert merged > 100
    assert most < 120, "300 without compaction"
    work.checkpoints.close()
    if every:
        found = Checkpoints(str(tmp_path), 2, {}, LAYOUT)
        position = found.latest()
        assert position is not None
        assert position.rounds == 150
        work.check(position.ledger)
        assert found.newest() is not None
        assert sum(position.ledger.sizes) >= CLIENTS - 1


def test_a_large_run_merges_only_small_and_mostly_dead_segments() -> None:
    ledger, rng = Ledger.fresh(100_000), np.random.default_rng(0)
    copied, most = 0, 0
    for index in range(400):
        clients = rng.permutation(100_000)[:1000]
        for call in range(16):
            some = clients[call * 62 : call * 62 + 62].tolist()
            ledger.commit({client: StateRef(f"{index}-{call}", row, 0) for row, client in enumerate(some)})
        ledger.forget(set(ledger.names) - ledger.needed())
        if poor := compaction.poor_segments(ledger, row_bytes=31_000):
            moved = np.flatnonzero(np.isin(ledger.segments, poor))
            ledger.move(moved, [ledger[client] for client in moved.tolist()], f"{index}-merged")
            copied += len(moved)
        most = max(most, len(ledger.needed()))
    assert most <= compaction.MAX_POOR + 100_000 * 31_000 // 2**26 + 16
    assert copied < 3 * 400 * 992, "each state is copied a few times at most"
    assert ledger.stored_rows < 4 * 100_000


@pytest.mark.parametrize(("row_bytes", "due"), [(31_000, True), (2**26, False)])
def test_segments_are_merged_because_they_are_small_and_not_because_they_hold_few_rows(
    row_bytes: int, due: bool
) -> None:
    ledger = Ledger.fresh(1000)
    ledger.commit({client: StateRef(f"segment-{client // 2}", client % 2, 0) for client in range(1000)})
    assert bool(compaction.poor_segments(ledger, row_bytes)) == due


def test_a_failed_compaction_does_not_stop_the_run(
    tmp_path: Path, eager: None, caplog: pytest.LogCaptureFixture
) -> None:
    work = Rounds(tmp_path)
    for _ in range(20):
        work.run()
    number = compaction.poor_segments(work.ledger, LAYOUT.row_bytes)[0]
    row = work.ledger.rows[work.ledger.segments == number][0]
    path = Path(work.folder.path(work.ledger.names[number]))
    content = path.read_bytes()
    start = 16 + row * LAYOUT.row_bytes
    path.write_bytes(content[:start] + b"!!!" + content[start + 3 :])
    for _ in range(2):
        work.checkpoints.maintain(work.ledger, work.rounds)
        wait_for(work.checkpoints._compactor)
    assert "cannot compact the client states (the state of client" in caplog.text
    assert not any(is_merged(name) for name in work.folder.names(parts=True)), "an incomplete segment is removed"
    path.write_bytes(content)
    work.checkpoints.maintain(work.ledger, work.rounds)
    assert work.checkpoints._compactor.in_use == set(), "it does not try again at once"
    work.check(work.ledger)


def test_a_run_ends_without_waiting_for_compaction(tmp_path: Path, eager: None, monkeypatch: Any) -> None:
    work, read = Rounds(tmp_path), SegmentFolder.read

    def slow(self: SegmentFolder, wanted: Any) -> np.ndarray:
        time.sleep(0.05)
        return read(self, wanted)

    monkeypatch.setattr(SegmentFolder, "read", slow)
    for _ in range(20):
        work.run()
    started = time.monotonic()
    work.checkpoints.maintain(work.ledger, work.rounds)
    assert len(work.checkpoints._compactor.in_use) > 20
    work.checkpoints.close()
    assert time.monotonic() - started < 1.0, "all batches would take more than 2 s"
    assert not any(is_merged(name) for name in work.folder.names(parts=True))


def test_a_run_with_compaction_gives_the_same_bits_and_resumes(tmp_path: Path, eager: None) -> None:
    merged: set[str] = set()

    def watch(record: RoundRecord) -> None:
        merged.update(path.name for path in (tmp_path / "whole" / "states").glob("*.merged.seg"))

    whole = run(small(rounds=24), out=tmp_path / "whole", observe=watch)
    assert merged
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(compaction, "MAX_POOR", 10**6)
    plain = run(small(rounds=24), out=tmp_path / "plain")
    monkeypatch.undo()
    assert whole.summary["sha256"] == plain.summary["sha256"]
    interrupted(tmp_path / "parts", after=15, rounds=24)
    parts = run(small(rounds=24), out=tmp_path / "parts", resume=True)
    assert parts.summary["sha256"] == plain.summary["sha256"]


CRASHING = """
import os, sys
from raybcgd import run
from raybcgd.record import checkpoint, compaction, ledger, states
from tests.conftest import small

compaction.MAX_POOR, compaction._BATCH_BYTES = 3, 10_000
left = int(sys.argv[2])

def crashing(owner, name):
    function = getattr(owner, name)
    def call(*arguments):
        global left
        left -= 1
        if left == 0:
            os._exit(9)
        return function(*arguments)
    setattr(owner, name, call)

for owner, names in (
    (states.SegmentFile, ("append", "close")),
    (states.SegmentFolder, ("create", "remove")),
    (ledger.Ledger, ("commit", "move", "forget")),
    (checkpoint, ("write_file",)),
):
    for name in names:
        crashing(owner, name)
run(small(rounds=24), out=sys.argv[1], resume=os.path.exists(sys.argv[1] + "/config.toml"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_that_is_killed_at_any_step_resumes_with_the_same_bits(tmp_path: Path, seed: int) -> None:
    out, rng = tmp_path / "run", random.Random(seed)
    for _ in range(4):
        command = [sys.executable, "-c", CRASHING, str(out), str(rng.randint(10, 40))]
        assert subprocess.run(command, check=False).returncode == 9
    killed = run(small(rounds=24), out=out, resume=True)
    assert killed.summary["sha256"] == run(small(rounds=24), out=tmp_path / "whole").summary["sha256"]
    assert [record.round for record in killed.records] == list(range(24))
