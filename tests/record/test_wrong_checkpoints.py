"""Checkpoints whose checksums are right and whose content is wrong: the run falls back to the one before."""

import hashlib
import json
import logging
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from raybcgd.errors import RunError
from raybcgd.experiment import run
from raybcgd.record.checkpoint import Checkpoints
from tests.conftest import small

Change = Callable[[Path, dict[str, Any]], None]


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints after rounds 2 and 4."""
    return run(small(rounds=4), out=tmp_path_factory.mktemp("half") / "run").folder


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(run(small(rounds=6), out=tmp_path_factory.mktemp("whole") / "run").summary["sha256"])


def put(key: str, value: Any) -> Change:
    return lambda folder, manifest: manifest.update({key: value})


def drop(key: str) -> Change:
    return lambda folder, manifest: manifest.pop(key)


def arrays(file: str, **new: Callable[[np.ndarray], np.ndarray | None]) -> Change:
    def change(folder: Path, manifest: dict[str, Any]) -> None:
        found = load_file(folder / file)
        for name, function in new.items():
            array = function(found.pop(name, np.zeros(1, np.float32)))
            if array is not None:
                found[name] = np.ascontiguousarray(array)
        save_file(found, folder / file)

    return change


def content(file: str, data: bytes) -> Change:
    return lambda folder, manifest: (folder / file).write_bytes(data) and None  # type: ignore[func-returns-value]


def huge(folder: Path, manifest: dict[str, Any]) -> None:
    """Declare a tensor of 2^60 bytes in a small file."""
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**58], "data_offsets": [0, 2**60]}}).encode()
    (folder / "server.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def log_lines(select: slice) -> Change:
    def change(folder: Path, manifest: dict[str, Any]) -> None:
        lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
        (folder / "rounds.jsonl").write_bytes(b"".join(lines[select]))

    return change


WRONG: dict[str, Change] = {
    "rounds too many": put("rounds", 12),
    "rounds negative": put("rounds", -5),
    "rounds a text": put("rounds", "four"),
    "upload not a number": put("upload_d_total", "much"),
    "upload infinite": put("upload_d_total", float("inf")),
    "identity missing": drop("identity"),
    "identity a list": put("identity", []),
    "segments missing": drop("segments"),
    "segments elsewhere": put("segments", ["../../etc/passwd"]),
    "segments empty": put("segments", []),
    "files missing": put("sha256", {}),
    "files elsewhere": lambda folder, manifest: manifest["sha256"].update({"../../config.toml": "0"}),
    "unknown key": put("code", "print()"),
    "server shorter": arrays("server.safetensors", x=lambda x: x[:-1]),
    "server of another type": arrays("server.safetensors", x=lambda x: x.astype(np.float64)),
    "server without v": arrays("server.safetensors", v=lambda v: None),
    "server with more": arrays("server.safetensors", w=lambda w: w),
    "server a pickle": content("server.safetensors", pickle.dumps({"x": 1})),
    "server huge": huge,
    "history unexpected": content("history.safetensors", b""),
    "ledger shorter": arrays(
        "ledger.safetensors", **{name: lambda a: a[:-1] for name in ("segments", "rows", "checksums")}
    ),
    "ledger uneven": arrays("ledger.safetensors", rows=lambda rows: rows[:-1]),
    "ledger without rows": arrays("ledger.safetensors", rows=lambda rows: None),
    "ledger of floats": arrays("ledger.safetensors", rows=lambda rows: rows.astype(np.float32)),
    "ledger to no segment": arrays("ledger.safetensors", segments=lambda s: np.where(s >= 0, 99, s).astype(np.int32)),
    "ledger to no row": arrays("ledger.safetensors", rows=lambda rows: rows - 1000),
    "log shorter": log_lines(slice(0, 3)),
    "log out of order": log_lines(slice(None, None, -1)),
    "log of something else": content("rounds.jsonl", b"{}\n{}\n{}\n{}\n"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_checkpoint_is_skipped(
    name: str, half: Path, expected: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    folder = out / "checkpoints" / "round-000004"
    manifest = json.loads((folder / "manifest.json").read_text().rpartition("\n}")[0] + "\n}")
    WRONG[name](folder, manifest)
    if name == "history unexpected":
        manifest["sha256"]["history.safetensors"] = ""
    for file in manifest.get("sha256", {}):
        if (folder / file).is_file() and ".." not in file:
            manifest["sha256"][file] = hashlib.sha256((folder / file).read_bytes()).hexdigest()
    body = json.dumps(manifest)
    (folder / "manifest.json").write_text(f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n")
    with caplog.at_level(logging.WARNING):
        result = run(small(rounds=6), out=out, resume=True)
    assert "skipping the damaged checkpoint of round 4" in caplog.text
    assert "starts again" not in caplog.text
    assert result.summary["sha256"] == expected
    assert [record.round for record in result.records] == list(range(6))


@pytest.mark.parametrize("file", ["manifest.json", "server.safetensors", "rounds.jsonl"])
def test_a_folder_in_the_place_of_a_file_is_skipped(file: str, half: Path, expected: str, tmp_path: Path) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    path = out / "checkpoints" / "round-000004" / file
    path.unlink()
    path.mkdir()
    assert run(small(rounds=6), out=out, resume=True).summary["sha256"] == expected


def test_a_checkpoint_that_cannot_be_read_now_is_not_deleted(
    half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short outage of the storage is not damage."""
    out = Path(shutil.copytree(half, tmp_path / "run"))
    before = {path: path.read_bytes() for path in (out / "checkpoints").rglob("*") if path.is_file()}

    def fails(self: Checkpoints, path: str) -> bytes:
        raise OSError("the storage does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "_bytes", fails)
        with pytest.raises(RunError, match=r"cannot read the checkpoint at .*round-000004 \(.*does not answer\)"):
            run(small(rounds=6), out=out, resume=True)
    assert {path: path.read_bytes() for path in (out / "checkpoints").rglob("*") if path.is_file()} == before
