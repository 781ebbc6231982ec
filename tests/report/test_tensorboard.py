"""Reports for TensorBoard."""

import sys
from pathlib import Path

import pytest

from raybcgd.record.rounds import RoundLog
from raybcgd.report.tensorboard import scalars
from tests.report.conftest import report


def test_without_tensorboard_the_error_says_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = report(folder, "--tensorboard", tmp_path)
    assert result.exit_code == 2
    assert "pip install raybcgd[tensorboard]" in result.output


def test_tensorboard_gets_every_round(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert report(folder, "--tensorboard", tmp_path, "--out", tmp_path / "page.html").exit_code == 0
    events = EventAccumulator(str(tmp_path / "FedBCGD"))
    events.Reload()
    log = list(RoundLog(folder / "fedbcgd/rounds.jsonl"))
    seen = [event.value for event in events.Scalars("quality/accuracy")]
    assert seen == pytest.approx([record.quality.accuracy for record in log])


def test_tensorboard_curves_are_fields_of_the_record(folder: Path) -> None:
    record = next(iter(RoundLog(folder / "fedbcgd_plus/rounds.jsonl")))
    curves = scalars(record)
    assert curves["quality/accuracy"] == record.quality.accuracy
    assert curves["traffic/upload_d_total"] == record.traffic.upload_d_total
    assert curves["blocks/server_norms/v/shared"] == record.blocks.server_norms["v"][-1]
    assert curves["timing/stage_seconds/train"] == record.timing.stage_seconds["train"]
    assert curves["clients/participants"] == len(record.participants)
