"""A full disk ends a run with one line and whole files; after making room, a resume gives the same bits."""

import errno
import json
import resource
from pathlib import Path

import pytest
from pyarrow import fs
from typer.testing import CliRunner, Result

from raybcgd.cli import app
from raybcgd.errors import RunError
from raybcgd.experiment import run
from raybcgd.record.rounds import RoundLog
from raybcgd.storage import append_line, write_atomic, writing
from tests.conftest import ONE_BY_ONE, small

CONFIG = small(rounds=8, local=ONE_BY_ONE, metrics={"enabled": False})


def limited(limit: int, *words: str) -> Result:
    """Run a command with a file size limit, which makes writes fail as a full disk does, after a partial write.

    In this process, where Python ignores the signal of the limit. A new one would first import torch.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        return CliRunner().invoke(app, words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(CONFIG, out=tmp_path_factory.mktemp("whole") / "run").folder


@pytest.mark.parametrize("file", ["rounds.jsonl", "states", "checkpoints/round-000004/server.safetensors"])
def test_a_full_disk_ends_in_one_line_and_can_be_resumed(file: str, whole: Path, tmp_path: Path, out: Path) -> None:
    largest = max(path.stat().st_size for path in whole.rglob("*.seg"))
    size = {"rounds.jsonl": (whole / "rounds.jsonl").stat().st_size - 300, "states": largest - 100}.get(file, 3000)
    (tmp_path / "small.toml").write_text(CONFIG.to_toml())
    done = limited(size, "train", str(tmp_path / "small.toml"), "--out", str(out))
    assert done.exit_code == 1, done.output
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "cannot write" in done.stderr
    assert "make room" in done.stderr
    assert not list(out.rglob("*.part"))
    log = (out / "rounds.jsonl").read_bytes()
    assert log == b"" or log.endswith(b"\n")
    list(RoundLog(out / "rounds.jsonl"))
    resumed = run(CONFIG, out=out, resume=True)
    assert resumed.summary["sha256"] == json.loads((whole / "summary.json").read_text())["sha256"]
    assert [record.round for record in resumed.records] == list(range(8))


def test_a_torn_last_line_is_ignored_and_repaired(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = run(CONFIG.model_copy(update={"rounds": 4}), out=out)
    with (out / "rounds.jsonl").open("ab") as log:
        log.write(b'{"round": 4, "lr"')
    assert len(list(RoundLog(out / "rounds.jsonl"))) == len(first.records)
    resumed = run(CONFIG, out=out, resume=True)
    assert resumed.summary["sha256"] == json.loads((whole / "summary.json").read_text())["sha256"]
    assert (out / "rounds.jsonl").read_bytes().count(b"\n") == 8


def test_the_error_says_how_much_is_needed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    full = r"^cannot write .*file \(No space left on device\): 3 bytes are needed, [\d,]+ are free"
    with pytest.raises(RunError, match=full), writing(tmp_path / "file", 3):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(RunError, match=r"^cannot write .*folder \(Is a directory\); correct that"):
        write_atomic(tmp_path / "folder", b"abc")
    with pytest.raises(RunError, match=r"^cannot write .*folder"):
        append_line(tmp_path / "folder", b"abc\n")


def test_a_folder_that_cannot_be_made_needs_no_number_of_bytes(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(fs.LocalFileSystem):
        def create_dir(self, path: str, *, recursive: bool = True) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("raybcgd.record.checkpoint.open_address", lambda address: (Full(), address))
    with pytest.raises(RunError, match=r"round-\d{6} \(No space left on device\); make room, then resume the run$"):
        run(CONFIG, out=out)
