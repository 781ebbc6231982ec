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


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_folder_with_rounds_of_another_experiment_is_refused_whatever_the_address(
    finished: bool, elsewhere: bool, out: Path, tmp_path: Path
) -> None:
    config = tmp_path / "small.toml"
    config.write_text(small(rounds=2, checkpoint={"every": 1}).to_toml())
    command = ["train", str(config), "--out", str(out)]
    assert CliRunner().invoke(app, command).exit_code == 0
    if not finished:
        (out / "summary.json").unlink()
        (out / "final.safetensors").unlink()
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    address = ["--set", f"checkpoint.address={tmp_path / 'address'}"] if elsewhere else []
    settings = ["--set", "algorithm.lr=0.3", "--set", "rounds=3", *address]
    result = CliRunner().invoke(app, [*command, "--resume", "auto", *settings])
    assert result.exit_code == 2, result.output
    assert result.stderr.splitlines()[-1] == (
        f"error: the run in {out} belongs to another experiment: algorithm.lr = 0.05 in {out.name}, 0.3 now; restore "
        "these settings, or start a new run in another folder"
    )
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before
    assert not (tmp_path / "address").exists()
    new = CliRunner().invoke(app, ["train", str(config), "--out", f"{out}-new", "--resume", "auto", *settings])
    assert new.exit_code == 0, new.output
    free = CliRunner().invoke(app, [*command, "--resume", "auto", "--set", "rounds=3", "--set", "evaluation.every=2"])
    assert free.exit_code == 0, free.output
    assert [record.round for record in RoundLog(out / "rounds.jsonl")] == [0, 1, 2]


def test_the_advice_about_the_address_is_given_where_it_works(out: Path, tmp_path: Path) -> None:
    config, address = tmp_path / "small.toml", tmp_path / "address"
    config.write_text(small(rounds=2, checkpoint={"address": str(address), "every": 1}).to_toml())
    assert CliRunner().invoke(app, ["train", str(config), "--out", str(out)]).exit_code == 0
    again = ["train", str(config), "--resume", "auto", "--set", "algorithm.lr=0.3", "--out"]
    result = CliRunner().invoke(app, [*again, str(out)])
    assert result.exit_code == 2, result.output
    advice = "restore these settings, or start a new run"
    assert result.stderr.endswith(f"{advice} in another folder and at another checkpoint.address\n")
    result = CliRunner().invoke(app, [*again, f"{out}-new"])
    assert result.exit_code == 2, result.output
    assert result.stderr.splitlines()[-1] == (
        f"error: the checkpoint under {address}/checkpoints belongs to another experiment: algorithm.lr = 0.05 in the "
        f"checkpoint, 0.3 now; {advice} at another checkpoint.address"
    )
    new = CliRunner().invoke(app, [*again, f"{out}-new", "--set", f"checkpoint.address={tmp_path / 'other'}"])
    assert new.exit_code == 0, new.output
