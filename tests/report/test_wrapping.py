"""Lines of text wrap between words on a terminal, and stay whole in a file."""

import io

import pytest
from rich.console import Console

from raybcgd.cli import shared
from raybcgd.report.wrapping import print_text, wrap

LINE = "interrupted after 3 rounds; continue from the last checkpoint with `raybcgd resume runs/long --trust`"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_terminal_breaks_no_word_and_no_command(width: int) -> None:
    lines = wrap(LINE, width).split("\n")
    assert " ".join(lines) == LINE
    assert max(map(len, lines)) <= width
    assert lines[-1].endswith("`raybcgd resume runs/long --trust`")


def test_spaces_and_long_words_stay_as_they_are() -> None:
    assert wrap("lr = 0.1: accuracy 80%  (1 of 6 points done)\n  x", 60) == (
        "lr = 0.1: accuracy 80%  (1 of 6 points done)\n  x"
    )
    assert wrap(f"files: {'x' * 70} end", 60) == f"files:\n{'x' * 70}\nend"


def test_only_a_terminal_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for terminal in (False, True):
        console = Console(file=io.StringIO(), width=60, force_terminal=terminal, color_system=None)
        monkeypatch.setattr(shared, "out", console)
        shared.print_line(LINE)
        print_text(console, LINE)
        texts.append(console.file.getvalue())  # type: ignore[attr-defined]
    assert texts == [f"{LINE}\n" * 2, f"{wrap(LINE, 60)}\n" * 2]
