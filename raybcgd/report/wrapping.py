"""Print lines of text. On a terminal, they wrap between words."""

import re

from rich.console import Console

_WORD = re.compile(r"\s*(?:[^\s`]*`[^`]*`\S*|\S+)")
"""A word, or a command in backticks, with the space before it."""


def wrap(text: str, width: int) -> str:
    """Break lines between words. A command in backticks stays on one line, so that it can be copied."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for word in _WORD.findall(line):
            if shown and len(shown) + len(word) > width:
                lines.append(shown)
                shown = word.lstrip()
            else:
                shown += word
        lines.append(shown)
    return "\n".join(lines)


def print_text(console: Console, text: str) -> None:
    """Print text verbatim, without markup or colours. A file or a pipe gets the lines unbroken."""
    shown = wrap(text, console.width) if console.is_terminal else text
    console.print(shown, markup=False, highlight=False, soft_wrap=True)
