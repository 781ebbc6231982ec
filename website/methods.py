"""The pages of the methods: what is sent and kept, the settings and the code come from the package."""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from raybcgd.algorithms.contract import Kind, Mark, declared, size_in_d, summary
from raybcgd.algorithms.settings import ALGORITHMS, AlgorithmConfig
from raybcgd.cli.list_settings import rows
from website.measured import measured
from website.reference import cell, table

_KINDS = {
    Kind.WHOLE: "every coordinate",
    Kind.OWN: "the client's block and the shared block",
    Kind.SHARED: "the shared block",
    Kind.SCALAR: "one float",
    Kind.PER_PHASE: "one vector per data phase",
    Kind.PHASE_COUNTS: "one count per data phase",
    Kind.COUNT: "one count",
}
_MARKS = {
    Mark.SUMMED: "summed over the clients",
    Mark.DISPLACEMENT: "averaged over the clients that sent it",
    Mark.MOMENTUM: "the momentum",
    Mark.CONTROL_VARIATE: "the control variate",
}
_BLOCKS, _SHARED = 5, 0.02


def names() -> dict[str, str]:
    """Return the name of every method, by the name of its page."""
    return {name.replace("+", "-plus").replace("_", "-"): name for name in ALGORITHMS}


def complete(page: str, markdown: str) -> str:
    """Add what the code says about a method to its page. The page of all methods gets their table."""
    if page == "index":
        shared = table(rows("algorithm", AlgorithmConfig))
        return markdown.replace("<!-- methods -->", overview()).replace("<!-- settings -->", shared)
    kind = ALGORITHMS.resolve(names()[page])
    parts = [head(kind), markdown, "## What is sent and kept", travels(kind), "## Settings", settings(kind)]
    if numbers := measured(kind.name):
        parts += ["## Measured", numbers]
    return "\n\n".join([*parts, "## Code", code(kind)]) + "\n"


def overview() -> str:
    """Return the table of all methods."""
    lines = ["| `algorithm.name` | method | idea | upload | download | state |", "|---|---|---|---:|---:|---:|"]
    own = (1 - _SHARED) / _BLOCKS + _SHARED
    for page, name in names().items():
        kind = ALGORITHMS.resolve(name)
        words = summary(kind)
        sizes = (size_in_d(fields, own, _SHARED) for fields in (kind().upload_type, kind.Down, kind.Client))
        numbers = " | ".join(f"{round(size, 2):g}" for size in sizes)
        lines.append(f"| `{name}` | [{words.title}]({page}.md) | {cell(words.idea)} | {numbers} |")
    return "\n".join(lines)


def head(kind: type[Any]) -> str:
    """Return the title, the paper and the docstring."""
    words = summary(kind)
    paper = f"*{words.paper}.* " if words.paper else ""
    idea = words.idea[:1].upper() + words.idea[1:]
    rest = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[2]
    return "\n\n".join([f"# {words.title}", f'{paper}{cell(idea)} `algorithm.name = "{kind.name}"`', cell(rest)])


def travels(kind: type[Any]) -> str:
    """Return the declared fields as a table."""
    lines = ["| | field | size | |", "|---|---|---|---|"]
    uploads = {name: value for name, value in inspect.getmembers(kind) if re.fullmatch(r"\w*Upload", name)}
    chosen = kind().upload_type
    groups = [("download", kind.Down), ("upload", chosen)]
    groups += [(f"upload, `{name}`", value) for name, value in uploads.items() if value is not chosen]
    groups += [("kept by the client", kind.Client), ("kept by the server", kind.Server)]
    aggregated = {field.name: field.marks for field in declared(kind().terms_type)}
    for title, fields in groups:
        lines += _lines(title, fields, aggregated if title.startswith("upload") else {})
    return "\n".join(lines)


def _lines(title: str, fields: type[Any], aggregated: Mapping[str, frozenset[Mark]]) -> Iterator[str]:
    found = declared(fields)
    if not found:
        yield f"| {title} | nothing | | |"
    for number, field in enumerate(found):
        marks = ", ".join(_MARKS[mark] for mark in field.marks | aggregated.get(field.name, frozenset()))
        yield f"| {'' if number else title} | `{field.name}` | {_KINDS[field.kind]} | {marks} |"


def settings(kind: type[Any]) -> str:
    """Return the settings that the method adds to those of all methods."""
    own = table(rows(f'algorithm name = "{kind.name}"', kind))
    shared = "[Settings of all methods](index.md#settings-of-all-methods) apply too."
    return f"{own}\n\n{shared}" if own else shared.replace(" apply too", " apply; there are no others")


def code(kind: type[Any]) -> str:
    """Return the source of the class."""
    return f"````python\n{inspect.getsource(kind)}````"
