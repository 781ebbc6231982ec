"""The lines of a job's log are read back as rounds."""

import io
import re
from pathlib import Path

from rich.console import Console

from raybcgd.experiment import run
from raybcgd.record.rounds import RoundRecord
from raybcgd.report.job_log import last_round, log_bar
from raybcgd.report.progress import Display, parse_line
from tests.conftest import small


def printed(records: tuple[RoundRecord, ...], label: str) -> str:
    """Return what a job prints."""
    text = io.StringIO()
    with Display(Console(file=text, width=40)).run(label, len(records)) as watcher:
        watcher.announce("starting the hosts")
        for record in records:
            watcher.observe(record)
    return text.getvalue()


def test_rounds_are_read_back_from_the_log(out: Path) -> None:
    records = run(small(rounds=3, evaluation={"every": 2}), out=out).records
    log = printed(records, "FedBCGD+: a run")
    found = [line for line in map(parse_line, log.splitlines()) if line is not None]
    assert [(line.label, line.round, line.rounds) for line in found] == [("FedBCGD+: a run", k, 3) for k in (1, 2, 3)]
    for line, record in zip(found, records, strict=True):
        accuracy = record.quality.accuracy
        assert line.accuracy == (None if accuracy is None else round(100 * accuracy, 1))
        assert line.seconds == round(record.timing.seconds, 2)
    last = last_round(log)
    assert last is not None
    assert last.round == 3
    assert last.accuracy is not None
    assert last_round("no rounds here\n") is None


def test_the_bar_shows_the_last_round_and_keeps_the_other_lines() -> None:
    log = "files: /x\nA: round 1/4  accuracy 51.0%  loss 1.500   upload 0.5 d  0.10 s/round  60 clients/s\nlast words"
    text = io.StringIO()
    with log_bar(Console(file=text, force_terminal=True, width=200)) as bar:
        for start in range(0, len(log), 7):  # parts of the log end anywhere
            bar.write(log[start : start + 7])
    assert "files: /x" in text.getvalue()
    assert "1/4" in text.getvalue()
    assert "accuracy 51.0%" in text.getvalue()
    assert "last words" in text.getvalue()
    plain = io.StringIO()
    with log_bar(Console(file=plain, width=200)) as bar:
        bar.write(log)
    assert plain.getvalue() == log + "\n"


def test_no_run_stays_in_progress_after_the_end_of_the_log() -> None:
    text = io.StringIO()
    with log_bar(Console(file=text, force_terminal=True, width=200, color_system=None)) as bar:
        bar.write("A: round 1/4  upload 0.5 d  0.10 s/round  60 clients/s  9 s left\nA: failed after round 1\n")
    last = [line for line in re.sub(r"\x1b\[\S*?[a-zA-Z]", "\n", text.getvalue()).splitlines() if line.strip()][-1]
    assert "1/4" in last
    assert "left" not in last
