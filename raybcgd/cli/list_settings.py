"""`raybcgd settings`: every setting of a config, as declared in the settings classes."""

import functools
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic_core import PydanticUndefined
from rich.markup import escape
from rich.table import Table

from raybcgd.algorithms.settings import ALGORITHMS, AlgorithmConfig
from raybcgd.cli.shared import exits_cleanly, out
from raybcgd.config import Config
from raybcgd.config.explain import section_of
from raybcgd.data.settings import PARTITIONS, SOURCES, PartitionConfig
from raybcgd.errors import ConfigError
from raybcgd.model.settings import LOSSES, MODELS
from raybcgd.registry import Registry
from raybcgd.section import Section
from raybcgd.wire.settings import CODECS, CodecConfig

_CHOICES: dict[type[Section], Registry]
_CHOICES = {AlgorithmConfig: ALGORITHMS, CodecConfig: CODECS, PartitionConfig: PARTITIONS}
_CALLABLES = {registry.setting: registry for registry in (SOURCES, MODELS, LOSSES)}


@exits_cleanly
def settings(
    table: Annotated[str | None, typer.Argument(help="Show only this table, such as cohort or data.partition.")] = None,
) -> None:
    """List every setting of a config with its default and meaning."""
    shown = {name: kind for name, kind in tables() if table is None or name.split(" ")[0] == table}
    if not shown:
        known = dict.fromkeys(name.split(" ")[0] for name, _ in tables())
        raise ConfigError(f"{table} is not a table of a config; use one of {', '.join(name for name in known if name)}")
    page = Table(show_lines=False)
    for heading, width in (("setting", None), ("default", 18)):
        page.add_column(heading, max_width=width, overflow="fold")
    page.add_column("meaning", ratio=1)
    for name, kind in shown.items():
        page.add_section()
        path, _, choice = name.partition(" ")
        page.add_row(f"[bold]{escape(f'[{path}] {choice}')}" if name else "[bold]top level", "", escape(about(kind)))
        for row in rows(name, kind):
            page.add_row(*map(escape, row))
    out.print(page, highlight=False)


def tables(root: type[Section] = Config, prefix: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Yield the name and class of every table, and of every choice for a table, such as `wire codec = "topk"`."""
    yield prefix.rstrip("."), root
    for name in root.model_fields:
        inner = section_of(root, name)
        if inner is not None:
            yield from tables(inner, f"{prefix}{name}.")
    if root in _CHOICES:
        registry = _CHOICES[root]
        yield from ((f'{registry.table} {registry.key} = "{name}"', registry.resolve(name)) for name in registry)


def own_settings(kind: type[Section]) -> list[str]:
    """Return a table's settings without nested tables. For a choice, leave out what it inherits unchanged."""
    shared = next((base.model_fields for base in _CHOICES if kind is not base and issubclass(kind, base)), {})
    own = (k for k, field in kind.model_fields.items() if k not in shared or field.default != shared[k].default)
    return [name for name in own if section_of(kind, name) is None]


def about(kind: type[Section]) -> str:
    """Return the first paragraph of a table's docstring, without the name of the table."""
    first = " ".join((kind.__doc__ or "").split("\n\n")[0].split()).rpartition("]`: ")[2]
    return first[:1].upper() + first[1:]


def rows(table: str, kind: type[Section]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the default and the meaning of every setting of a table."""
    if kind is Config:
        yield "extends", "", "Path of a config to build on, relative to this file. This file overrides its settings."
    if kind in _CHOICES:
        registry = _CHOICES[kind]
        section = functools.reduce(getattr, table.split("."), Config())
        yield registry.key, _text(registry.name_of(type(section))), f'{" | ".join(registry)} | "package.module:Name"'
    for key in own_settings(kind):
        field = kind.model_fields[key]
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        names = " | ".join(_CALLABLES.get(f"{table}.{key}", map(str, choices)))
        words = " ".join((field.description or "").split())
        yield key, _text(field.default), f"{names}. {words}" if names else words


def _text(default: Any) -> str:
    if default is None or default is PydanticUndefined:
        return ""
    return json.dumps(default) if isinstance(default, bool | int | float | str | tuple) else repr(default)
