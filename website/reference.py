"""Generated pages of the reference: the commands and the settings."""

from collections.abc import Iterable
from typing import Any

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

from raybcgd.cli.app import app
from raybcgd.cli.list_settings import about, rows, tables


def pages() -> dict[str, str]:
    """Return the generated pages, by path in the site."""
    return {"commands.md": commands(), "settings.md": settings()}


def commands() -> str:
    """Return the help of every command."""
    command = get_command(app)
    _prepare(command)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="raybcgd")
    return text.replace("# `raybcgd`", "# Commands", 1)


def _prepare(group: Any) -> None:
    """Remove hidden commands, and do not shorten descriptions in lists of commands."""
    commands = getattr(group, "commands", {})
    for name, command in list(commands.items()):
        if command.hidden:
            del commands[name]
        command.short_help = (command.help or "").partition("\n")[0]
        _prepare(command)


def settings() -> str:
    """Return all settings of a config, one section per table."""
    parts = [
        "# Settings",
        "All settings of a config, with their defaults. A config is a TOML file; `--set table.key=value` changes a "
        "setting on the command line. `raybcgd settings` prints this page.",
    ]
    for name, kind in tables():
        path, _, choice = name.partition(" ")
        title = f"## `[{path}]`" if path and not choice else f"### `{choice}`" if choice else "## Top level"
        parts += [title, about(kind), table(rows(name, kind))]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(lines: Iterable[tuple[str, str, str]]) -> str:
    """Return settings as a Markdown table, or nothing if there are none."""
    found = [
        f"| `{name}` | {f'`{default}`' if default else ''} | {cell(meaning)} |" for name, default, meaning in lines
    ]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *found]) if found else ""


def cell(text: str) -> str:
    """Return text that does not end a cell of a table or start a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
