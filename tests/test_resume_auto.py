"""`raybcgd train --resume auto`: the same command starts a run and resumes it, even on another machine."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from raybcgd.cli import app
from raybcgd.record.rounds import RoundLog
from tests.conftest import small


def test_a_run_resumes_from_its_checkpoint_address(tmp_path: Path) -> None:
    """Use two run folders, as on the heads of two clusters, and an address that both can reach."""
    config = tmp_path / "small.toml"
    config.write_text(small(checkpoint={"address": str(tmp_path / "address"), "every": 2}).to_toml())
    for name, rounds in (("first", 2), ("second", 4)):
        arguments = ["train", str(config), "--out", str(tmp_path / name), "--resume", "auto"]
        done = CliRunner().invoke(app, [*arguments, "--set", f"rounds={rounds}"])
        assert done.exit_code == 0, done.output
    assert "round 2/4" not in done.output
    assert "round 3/4" in done.output
    assert [record.round for record in RoundLog(tmp_path / "second" / "rounds.jsonl")] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("command", "files", "found", "resume"),
    [
        ("compare", ["config.toml", "rounds.jsonl"], "a run, not a comparison", "auto"),
        ("compare", ["sweep.json"], "a sweep, not a comparison", "auto"),
        ("sweep", ["config.toml"], "a run, not a sweep", "auto"),
        ("sweep", ["planned.json"], "a comparison, not a sweep", "auto"),
        ("train", ["planned.json", "comparison.json"], "a comparison, not a run", "auto"),
        ("train", ["sweep.json"], "a sweep, not a run", "auto"),
        ("train", ["planned.json"], "a comparison, not a run", "never"),
    ],
)
def test_a_folder_of_another_kind_is_refused(
    command: str, files: list[str], found: str, resume: str, out: Path, tmp_path: Path
) -> None:
    config = tmp_path / "small.toml"
    config.write_text(small().to_toml())
    out.mkdir()
    for name in files:
        (out / name).write_text("{}")
    grid = ["--grid", "algorithm.lr=0.1,0.2"] if command == "sweep" else []
    result = CliRunner().invoke(app, [command, str(config), *grid, "--out", str(out), "--resume", resume])
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"error: {out} holds {found}; choose another --out"
    assert sorted(path.name for path in out.iterdir()) == sorted(files)
