"""The progress of a run on a terminal and in a log."""

import io
import math
import re
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest
from rich.console import Console

from raybcgd.compare import compare
from raybcgd.errors import ConfigError, RunError
from raybcgd.experiment import run
from raybcgd.record.rounds import Blocks, Hosts, Quality, RoundRecord, Timing, Traffic
from raybcgd.report.bars import RunBar, duration
from raybcgd.report.progress import Display, RoundLine
from tests.conftest import small


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


def line_at(width: int, label: str = "FedBCGD+") -> str:
    """Return the last line that a terminal shows after 40 of 100 rounds."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with Display(console).run(label, 100) as watcher:
        for number in range(40):
            watcher.observe(record(number))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    return [line for line in re.sub(r"\x1b\[\S*?[a-zA-Z]", "\n", shown).splitlines() if line.strip()][-1]


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


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("label", ["FedBCGD+", "[11/12] FedBCGD+ with a long name, seed 2"])
def test_the_bar_fits_the_terminal_and_shows_rounds_and_time_left(width: int, label: str) -> None:
    line = line_at(width, label).rstrip()
    assert 40 < len(line) <= width
    assert label[:8] in line
    assert label[-6:] in line
    assert " 40/100 " in line
    assert line.endswith("6 s left")
    assert "━━" in line
    assert ("  accuracy 50.0%" if width >= 80 else "  50.0%") in line
    assert width < 120 or "upload 8.0 d  0.10 s/round" in line


@pytest.mark.parametrize("width", [60, 80])
def test_shortened_labels_keep_what_distinguishes_them(width: int) -> None:
    seeds = [f"[{k}/8] ClientMomentum with a name, seed {k}" for k in (1, 2)]
    for labels in (seeds, ["FedBCGD with a step size of 0.1", "FedBCGD with a step size of 0.3"]):
        shown = [RunBar(label).parts(width)[0] for label in labels]
        assert len(set(shown)) == 2
        assert all(len(text) <= max(24, width // 3) for text in shown)
    assert RunBar(seeds[0]).parts(60)[0] == "[1/8] ClientMom…, seed 1"
    assert RunBar("[5/8] FedBCGD+, seed 0").parts(60)[0] == "[5/8] FedBCGD+, seed 0"


def test_a_bar_shows_what_it_waits_for_and_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60, color_system=None)
    with Display(console).run("FedX", 2) as watcher:
        watcher.announce("starting Ray")
        now = monotonic()
        monkeypatch.setattr("raybcgd.report.bars.monotonic", lambda: now + 7)
    assert "starting Ray … 7 s" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_bar_of_a_finished_run_shows_no_time_left() -> None:
    bar = RunBar("[1/2] FedX")
    RoundLine("FedX", 9, 10, 50.0, 1.0, 0.2, 0.1, 3.0, "7 s").show(bar)
    assert "7 s left" in bar.plain()
    RoundLine("FedX", 10, 10, 50.0, 1.0, 0.2, 0.1, 3.0, "6 s").show(bar)  # of the second run
    assert "left" not in bar.plain()


@pytest.mark.parametrize(("error", "how"), [(RunError("x"), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_a_run_that_fails_or_is_interrupted_is_not_shown_as_running(error: BaseException, how: str) -> None:
    def stopped(console: Console) -> None:
        with Display(console).run("FedX", 30) as watcher:
            watcher.observe(record(0))
            watcher.observe(record(1))
            raise error

    shown = []
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)
        with pytest.raises(type(error)):
            stopped(console)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        shown.append([line for line in re.sub(r"\x1b\[\S*?[a-zA-Z]", "\n", text).splitlines() if line.strip()][-1])
    bar, line = shown
    assert bar.startswith("  FedX")  # no spinner
    assert bar.rstrip().endswith(f"{how} after round 2")
    assert " left" not in bar
    assert line == f"FedX: {how} after round 2"


def test_a_run_that_is_refused_is_not_shown_as_failed() -> None:
    def refused(console: Console) -> None:
        with Display(console).run("FedX", 30) as watcher:
            watcher.announce("preparing the data and the model")
            raise ConfigError("x")

    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)
        with pytest.raises(ConfigError):
            refused(console)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert "failed" not in text
        if terminal:
            last = re.split(r"\x1b\[2K", text)[-1]
            assert "FedX" not in last, "the bar is removed"
        else:
            assert text == "FedX: preparing the data and the model …\n"


def test_the_time_left_leaves_out_the_first_round_and_includes_the_runs_to_come() -> None:
    display = Display()
    display.expect(3, rounds=30)
    display.begin(10)
    assert display.left(9, 50.0, first=True) == "24 min"  # nothing better is known: 29 rounds of 50 s
    assert display.left(8, 1.0, first=False) == "28 s"
    assert display.left(7, 3.0, first=False) == "54 s"
    display.begin(10)
    assert display.left(9, 60.0, first=True) == "38 s"
    display.begin(10)
    assert display.left(0, 2.0, first=False) is None


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (99, "99 s"), (100, "2 min"), (7500, "2 h 5 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_log_shows_one_line_per_round() -> None:
    console = Console(file=io.StringIO(), width=80)
    with Display(console).run("FedX", 30) as watcher:
        watcher.announce("starting Ray")
        watcher.observe(record(0))
        watcher.observe(record(1, accuracy=None))
    first, second, third = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert first == "FedX: starting Ray …"
    assert second == "FedX: round 1/30  accuracy 50.0%  loss 1.000  upload 0.2 d  0.10 s/round  0 clients/s  3 s left"
    assert "accuracy" not in third


def test_python_shows_progress_unless_told_otherwise(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(small(rounds=2), out=out)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = [line for line in shown.err.splitlines() if " took " not in line]  # after more than a second
    assert lines[:2] == ["FedBCGD+: preparing the data and the model …", "FedBCGD+: training the first rounds …"]
    assert [line.split("  ")[0] for line in lines[-2:]] == ["FedBCGD+: round 1/2", "FedBCGD+: round 2/2"]
    run(small(rounds=3), out=out, resume=True)
    resumed = capsys.readouterr().err
    assert "resuming from round 2 …" in resumed
    assert "training the next rounds …" in resumed
    assert "first rounds" not in resumed
    run(small(rounds=1), out=out.with_name("quiet"), progress=False)
    assert capsys.readouterr().err == ""


def test_a_comparison_announces_every_step_and_counts_the_runs(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(small(rounds=2), algorithms=["fedavg", "fedbcgd"], out=out)
    lines = [line for line in capsys.readouterr().err.splitlines() if " took " not in line]
    assert lines[:3] == ["reading the data …", "checking FedAvg …", "checking FedBCGD …"]
    assert "[1/2] FedAvg: training the first rounds …" in lines
    assert lines[-1].startswith("[2/2] FedBCGD: round 2/2  accuracy ")


def test_a_loss_that_is_not_finite_is_a_warning_once_per_run(caplog: pytest.LogCaptureFixture) -> None:
    def with_loss(index: int, loss: float) -> RoundRecord:
        found = record(index)
        return found.model_copy(update={"quality": found.quality.model_copy(update={"loss": loss})})

    with Display(Console(file=io.StringIO(), width=80)).run("FedX", 30) as watcher:
        for index, loss in enumerate((1.0, math.nan, math.nan)):
            watcher.observe(with_loss(index, loss))
    (message,) = caplog.messages
    assert message.startswith("FedX: the loss is nan in round 2.")


def test_a_notebook_updates_one_output_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds of a run must not fill the notebook, and `rich` itself needs a widget library to update in place."""
    pytest.importorskip("IPython")
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    published = CapturingDisplayPublisher()
    monkeypatch.setattr(shell, "display_pub", published)
    with Display(Console(force_jupyter=True)).run("FedX", 2) as watcher:
        watcher.announce("starting Ray")
        watcher.observe(record(0))
        watcher.observe(record(1))
    texts = [output["data"]["text/plain"] for output in published.outputs]
    assert len({output["transient"]["display_id"] for output in published.outputs}) == 1
    assert [output.get("update", False) for output in published.outputs] == [False] + [True] * (len(texts) - 1)
    assert texts[0] == "FedX  ░░░░░░  0/2  starting Ray …"
    assert texts[1].startswith("FedX  ███░░░  1/2  accuracy 50.0%  loss 1.000  upload 0.2 d  0.10 s/round")
    assert texts[-1].startswith("FedX  ██████  2/2")


def test_a_long_command_shows_a_sign_before_torch_is_imported() -> None:
    code = "import sys, raybcgd.__main__ as m; m._show_start(sys.argv[1:]); print('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    for arguments, shown in ((["train", "x.toml"], "loading PyTorch …\n"), (["train", "x", "--log", "json"], "")):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout == f"{shown}False\n"
