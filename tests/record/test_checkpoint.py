"""Checkpoints: runs resume bit for bit, other experiments are refused, damaged checkpoints are skipped."""

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import fs

from raybcgd import ConfigError, RoundRecord, Run, run
from raybcgd.errors import RunError
from raybcgd.problem import prepare
from raybcgd.record.rounds import RoundLog, Timing
from raybcgd.record.states import SegmentFolder, new_name
from tests.conftest import small


class Stop(Exception):
    """Raised by an observer to interrupt a run."""


def stop_after(round_index: int) -> Any:
    def observe(record: RoundRecord) -> None:
        if record.round == round_index:
            raise Stop

    return observe


def interrupted(out: Path, after: int, rounds: int = 8, **tables: Any) -> None:
    with pytest.raises(Stop):
        run(small(rounds=rounds, **tables), out=out, observe=stop_after(after))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(run(small(rounds=8), out=tmp_path_factory.mktemp("whole") / "run").summary["sha256"])


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_a_resumed_run_ends_with_the_same_weights(out: Path, uninterrupted: str, after: int) -> None:
    interrupted(out, after)
    result = run(small(rounds=8), out=out, resume=True)
    assert result.summary["sha256"] == uninterrupted
    assert [record.round for record in result.records] == list(range(8))


def test_uploads_are_summed_across_a_resume(out: Path, tmp_path: Path) -> None:
    interrupted(out, after=5)
    resumed = run(small(rounds=8), out=out, resume=True)
    whole = run(small(rounds=8), out=tmp_path / "whole")
    assert resumed.summary["upload_d_total"] == whole.summary["upload_d_total"]
    assert resumed.summary["upload_bytes"] == whole.summary["upload_bytes"]


def test_the_total_time_includes_the_rounds_before_a_resume(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(RoundLog):
        def __iter__(self) -> Iterator[RoundRecord]:
            for record in super().__iter__():
                yield record.model_copy(update={"timing": Timing(seconds=1000.0, stage_seconds={})})

    interrupted(out, after=5)
    monkeypatch.setattr("raybcgd.experiment.RoundLog", Slow)
    total = run(small(rounds=8), out=out, resume=True).summary["total_seconds"]
    assert 6000 < total < 6500, "6 rounds before, and the time of this process"


def test_a_finished_run_can_be_extended(out: Path, uninterrupted: str) -> None:
    run(small(rounds=4), out=out)
    assert run(small(rounds=8), out=out, resume=True).summary["sha256"] == uninterrupted


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_damaged_summary_is_named_and_a_resume_writes_it_again(out: Path, content: str) -> None:
    expected = run(small(rounds=2), out=out).summary["sha256"]
    (out / "summary.json").write_text(content)
    with pytest.raises(ConfigError, match=r"summary\.json is damaged \(.*\); delete it, then resume the run"):
        _ = Run.open(out).summary
    assert run(small(rounds=2), out=out, resume=True).summary["sha256"] == expected
    assert json.loads((out / "summary.json").read_text())["sha256"] == expected


def test_settings_that_do_not_affect_the_weights_may_change(out: Path, uninterrupted: str) -> None:
    interrupted(out, after=5)
    config = small(rounds=8, hosts={"state_memory_mb": 0.001}, checkpoint={"every": 3}, evaluation={"every": 4})
    assert run(config, out=out, resume=True).summary["sha256"] == uninterrupted


def test_another_experiment_is_refused_with_the_difference(out: Path) -> None:
    interrupted(out, after=5)
    before = sorted(path.read_bytes() for path in out.rglob("*.safetensors"))
    with pytest.raises(ConfigError, match=r"algorithm\.lr = 0\.05 in run, 0\.1 now"):
        run(small(rounds=8, algorithm={"lr": 0.1}), out=out, resume=True)
    assert sorted(path.read_bytes() for path in out.rglob("*.safetensors")) == before


@pytest.mark.parametrize("file", ["server.safetensors", "ledger.safetensors", "manifest.json", "rounds.jsonl"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_skipped(
    out: Path, uninterrupted: str, file: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(out, after=6)
    newest = sorted((out / "checkpoints").iterdir())[-1] / file
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "remove":
        newest.unlink()
    else:
        newest.write_bytes(bytes(content) if damage == "flip" else bytes(content[: len(content) // 2]))
    with caplog.at_level(logging.WARNING):
        result = run(small(rounds=8), out=out, resume=True)
    assert result.summary["sha256"] == uninterrupted
    assert re.search(r"skipping the damaged checkpoint of round 6 \(.*\)", caplog.text)
    assert "starts again" not in caplog.text, "the checkpoint before is intact"


def newest_segment(folder: Path, index: int) -> Path:
    (path,) = (folder / "states").glob(f"{index:06d}-*.seg")
    return path


@pytest.mark.parametrize("damage", ["footer", "cut", "remove"])
def test_a_checkpoint_without_its_client_states_is_skipped(
    out: Path, uninterrupted: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(out, after=6)
    path = newest_segment(out, 5)
    content = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(content[:-1] + b"!" if damage == "footer" else content[: len(content) // 2])
    with caplog.at_level(logging.WARNING):
        result = run(small(rounds=8), out=out, resume=True)
    assert result.summary["sha256"] == uninterrupted
    assert "skipping the damaged checkpoint" in caplog.text


def test_a_ledger_that_does_not_match_its_segments_is_skipped(
    out: Path, uninterrupted: str, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(out, after=6)
    folder = SegmentFolder(str(out / "states"), prepare(small())[0].state_layout)
    path = newest_segment(out, 5)
    (footer,) = folder.footers([path.name]).values()
    rows = np.zeros((len(footer.clients), folder.layout.row_bytes), dtype=np.uint8)
    other = folder.create(path.name)
    other.append(footer.clients[::-1].tolist(), rows, footer.checksums[::-1].tolist())
    other.close()
    with caplog.at_level(logging.WARNING):
        result = run(small(rounds=8), out=out, resume=True)
    assert result.summary["sha256"] == uninterrupted
    assert "round 6 (the client states do not match the ledger)" in caplog.text


def test_a_damaged_row_is_found_when_it_is_used(out: Path) -> None:
    interrupted(out, after=6)
    for path in (out / "states").glob("*.seg"):
        content = bytearray(path.read_bytes())
        content[100] ^= 1  # in the first row
        path.write_bytes(content)
    with pytest.raises(RunError, match=r"the state of client \d+ as of round \d is damaged at .*/states/.*; restore"):
        run(small(rounds=30), out=out, resume=True)


def test_a_run_that_cannot_write_states_ends_with_one_line(out: Path) -> None:
    def block(record: RoundRecord) -> None:
        if record.round == 0:
            shutil.rmtree(out / "states")
            (out / "states").write_text("not a folder")

    with pytest.raises(RunError, match=r"^cannot write client states to .*; make room .*$"):
        run(small(rounds=8), out=out, observe=block)


@pytest.mark.parametrize("every", [0, 2])
def test_old_checkpoints_and_states_are_removed(out: Path, every: int) -> None:
    result = run(small(rounds=40, checkpoint={"every": every, "keep": 2}), out=out)
    kept = ["round-000038", "round-000040"] if every else []
    assert [path.name for path in sorted((out / "checkpoints").glob("*"))] == kept
    rounds = sorted(int(path.name[:6]) for path in (out / "states").iterdir())
    # A client takes part in 3 of 10 rounds.
    assert len(rounds) == len(set(rounds)) <= 25
    assert rounds[-1] == 39
    row_bytes = prepare(small())[0].state_layout.row_bytes
    assert result.records[-1].hosts.state_disk_bytes <= 30 * 6 * row_bytes


def test_leftovers_of_rounds_that_will_be_repeated_are_removed(out: Path, uninterrupted: str) -> None:
    interrupted(out, after=6)
    late = [out / "states" / name for name in (new_name(6), new_name(99), f"{new_name(6)}.part")]
    others = [out / "states" / "notes.txt", out / "checkpoints" / "round-000009.bak" / "notes.txt"]
    for path in (*late, *others):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"written by someone else")
    assert run(small(rounds=8), out=out, resume=True).summary["sha256"] == uninterrupted
    assert not any(path.exists() for path in late)
    assert all(path.exists() for path in others), "only files of the run are deleted"


def test_segments_of_late_hosts_are_removed_during_the_run(out: Path) -> None:
    names = [new_name(1), f"{new_name(1)}.part", new_name(99)]

    def write(record: RoundRecord) -> None:
        if record.round == 2:
            for name in names:
                (out / "states" / name).write_bytes(b"from a call that missed the deadline of its round")

    run(small(rounds=24, checkpoint={"every": 4}), out=out, observe=write)
    assert [(out / "states" / name).exists() for name in names] == [False, False, True]


def test_a_folder_with_a_run_is_not_overwritten(out: Path) -> None:
    run(small(rounds=2), out=out)
    with pytest.raises(ConfigError, match="already holds a run"):
        run(small(rounds=2), out=out)


def test_an_address_with_checkpoints_of_another_run_is_refused(out: Path, tmp_path: Path) -> None:
    address = str(tmp_path / "saved")
    run(small(rounds=2, checkpoint={"address": address}), out=out)
    with pytest.raises(ConfigError, match=r"checkpoint\.address"):
        run(small(rounds=2, checkpoint={"address": address}), out=tmp_path / "other")


def test_nothing_is_pickled(out: Path) -> None:
    run(small(rounds=4), out=out)
    kinds = {path.suffix for path in out.rglob("*") if path.is_file()}
    assert kinds == {".toml", ".jsonl", ".json", ".safetensors", ".seg"}


def test_a_run_resumes_from_a_file_system_that_cannot_rename(
    tmp_path: Path, out: Path, uninterrupted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an object store, files are written in place, and states that do not fit in memory spill to this machine."""
    bucket = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    for module in ("record.states", "record.checkpoint", "record.lock", "problem.checks", "storage"):
        monkeypatch.setattr(
            f"raybcgd.{module}.open_address", lambda address: (bucket, address.removeprefix("bucket://"))
        )
    tables: dict[str, Any] = {"checkpoint": {"address": "bucket://saved"}, "hosts": {"state_memory_mb": 0.01}}
    interrupted(out, after=5, **tables)
    # Resume as if on another machine, which has only the address.
    result = run(small(rounds=8, **tables), out=tmp_path / "elsewhere", resume=True)
    assert result.summary["sha256"] == uninterrupted
    assert [record.round for record in result.records] == list(range(8))


def test_checkpoints_of_another_version_are_refused(out: Path) -> None:
    run(small(rounds=2), out=out)
    manifest = out / "checkpoints" / "round-000002" / "manifest.json"
    body = manifest.read_text().rpartition("\n}")[0].replace('"version": 3', '"version": 2') + "\n}"
    manifest.write_text(f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n")
    with pytest.raises(ConfigError, match="was written by another version of raybcgd; resume it with that version"):
        run(small(rounds=4), out=out, resume=True)
