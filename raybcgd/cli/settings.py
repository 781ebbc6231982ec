"""`raybcgd settings`: everything that a config can say, from the classes that read it."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic_core import PydanticUndefined
from rich.markup import escape
from rich.table import Table

from raybcgd.algorithms import METHODS, Algorithm, FedBCGDPlus
from raybcgd.cli.shared import ends_clearly, out
from raybcgd.config import Config
from raybcgd.config.explain import section_of
from raybcgd.errors import ConfigError
from raybcgd.section import Section
from raybcgd.wire import CODECS, Codec


@ends_clearly
def settings(
    table: Annotated[
        str | None, typer.Argument(help="Only this table, such as cohort, data.partition or algorithm.")
    ] = None,
) -> None:
    """List what a config can say: every setting, its default and what it does."""
    shown = {name: kind for name, kind in tables() if table is None or name.split(" ")[0] == table}
    if not shown:
        known = dict.fromkeys(name.split(" ")[0] for name, _ in tables())
        raise ConfigError(f"{table} is not a table of a config; use one of {', '.join(name for name in known if name)}")
    page = Table(show_lines=False)
    for heading, width in (("setting", None), ("default", 18)):
        page.add_column(heading, max_width=width, overflow="fold")
    page.add_column("what", ratio=1)
    for name, kind in shown.items():
        page.add_section()
        page.add_row(f"[bold]{escape(f'[{name}]')}" if name else "[bold]at the top", "", "")
        if kind is Config:
            page.add_row("extends", "", "Another config, beside this one, of which this one says what is different.")
        if kind is Algorithm:
            page.add_row(
                "name", _default(FedBCGDPlus.name), "The method (see `raybcgd methods`), or package.module:Class."
            )
        for key in own_settings(kind):
            field = kind.model_fields[key]
            words = " ".join((field.description or "").split())
            page.add_row(key, _default(field.default), escape(f"{_choices(field.annotation)}{words}"))
    out.print(page, highlight=False)


def tables(root: type[Section] = Config, prefix: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Every table of a config and its class; for `[algorithm]` and `[wire]` also those of every method and codec."""
    yield prefix.rstrip("."), root
    for name in root.model_fields:
        inner = section_of(root, name)
        if inner is not None:
            yield from tables(inner, f"{prefix}{name}.")
    if root is Algorithm:
        yield from ((f'algorithm name = "{name}"', kind) for name, kind in METHODS.items() if own_settings(kind))
    elif root is Codec:
        yield from ((f'wire codec = "{name}"', kind) for name, kind in CODECS.items() if own_settings(kind))


def own_settings(kind: type[Section]) -> list[str]:
    """The settings of a table that are not tables themselves; of a method or codec, those that not all have alike."""
    general = next((base for base in (Algorithm, Codec) if kind is not base and issubclass(kind, base)), None)
    shared = {} if general is None else general.model_fields

    def is_own(name: str) -> bool:
        return name not in shared or (name != "codec" and kind.model_fields[name].default != shared[name].default)

    return [name for name in kind.model_fields if is_own(name) and section_of(kind, name) is None]


def _default(value: Any) -> str:
    if value is None or value is PydanticUndefined:
        return ""
    return json.dumps(value) if isinstance(value, bool | int | float | str | tuple) else repr(value)


def _choices(annotation: Any) -> str:
    """The words that a setting can be, where it is one of a few."""
    return f"{' | '.join(map(str, get_args(annotation)))}. " if get_origin(annotation) is Literal else ""
