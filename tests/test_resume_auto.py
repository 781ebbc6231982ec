"""`raybcgd train --resume auto`: the same command starts a run and resumes it, even on another machine."""

from pathlib import Path

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
