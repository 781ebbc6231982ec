"""The progress of a run on a terminal and in a log."""

import io

from rich.console import Console

from raybcgd.record.rounds import Blocks, Hosts, Quality, RoundRecord, Timing, Traffic
from raybcgd.report.progress import Display


def record(number: int, accuracy: float | None = 0.5) -> RoundRecord:
    """Return a round record with all fields that the progress shows."""
    return RoundRecord(
        round=number,
        lr=0.1,
        participants=(),
        quality=Quality(accuracy=accuracy, loss=None if accuracy is None else 1.0, train_loss=1.0),
        traffic=Traffic(
            upload_floats=0,
            upload_bytes=0,
            upload_d=0.2,
            upload_d_total=0.2 * (number + 1),
            download_floats=0,
            download_bytes=0,
        ),
        blocks=Blocks(upload_floats=(), upload_bytes=(), download_floats=(), drift_diversity=(), movement=()),
        timing=Timing(seconds=0.1, stage_seconds={}),
        hosts=Hosts(up=1),
    )


def test_a_terminal_shows_a_progress_bar() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Display(console).run("FedX", 2) as watcher:
        watcher.announce("starting Ray")
        watcher.observe(record(0))
        watcher.observe(record(1, accuracy=None))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2/2" in text
    assert "accuracy 50.0%" in text
    assert "upload 0.4 d" in text


def test_a_log_shows_one_line_per_round() -> None:
    console = Console(file=io.StringIO(), width=80)
    with Display(console).run("FedX", 2) as watcher:
        watcher.announce("starting Ray")
        watcher.observe(record(0))
        watcher.observe(record(1, accuracy=None))
    first, second, third = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert first == "FedX: starting Ray …"
    assert second.startswith("FedX: round 1/2  accuracy 50.0%  loss 1.000  upload 0.2 d  0.10 s/round")
    assert "accuracy" not in third
