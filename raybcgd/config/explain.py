"""Turn validation errors into one line that names the setting and the fix."""

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import ValidationError

from raybcgd.config.choices import CHOICES
from raybcgd.errors import ConfigError
from raybcgd.registry import InvalidSection, did_you_mean
from raybcgd.section import Section


def explain(
    error: ValidationError, whole: type[Section], part: type[Section] | None = None, table: str = "", name: str = ""
) -> str:
    """Return pydantic's first error as one line.

    `whole` is the class of the config. If the error is about a table whose class depends on one of its settings, `part`
    is that class, `table` the path of the table, and `name` the name of the choice.
    """
    root, what = part or whole, f"a setting of {name}" if name else "a setting"
    errors = error.errors(include_url=False)
    first = errors[0]
    path, section = _setting(first["loc"], root)
    setting = ".".join([table, *path] if table else path) or "config"
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return str(cause)
    if isinstance(cause, InvalidSection):
        return explain(cause.error, whole, cause.section, setting, cause.name)
    same = [e for e in errors if _setting(e["loc"], root)[0] == path]
    more = f" (other errors: {len(errors) - len(same)})" if len(same) < len(errors) else ""
    if first["type"] == "extra_forbidden":
        return f"{setting} is not {what}; {_nearest(path[-1], section, table, whole)}{more}"
    if first["type"] == "missing":
        return f"{setting} is not set and has no default; set it{more}"
    # A setting with a union type fails once per member of the union.
    reasons = dict.fromkeys(
        _list_of(section, path[-1], e["input"]) if e["type"] == "tuple_type" else _reason(e["msg"]) for e in same
    )
    if cause is not None and isinstance(first["input"], dict):  # a check of several settings of a table
        return f"{setting}: {_either(reasons)}{more}"
    return f"{setting} = {short(same[0]['input'])}: {_either(reasons)}{more}"


def _setting(location: tuple[int | str, ...], root: type[Section]) -> tuple[list[str], type[Section]]:
    """Return the path of a setting, without pydantic's names for union members, and the class of its table."""
    path: list[str] = []
    section = root
    inner: type[Section] | None = root
    for part in location:
        if isinstance(part, int) and path:
            path[-1] += f"[{part}]"
        elif inner is not None:
            section = inner
            path.append(str(part))
            inner = section_of(section, str(part))
    return path, section


def section_of(section: type[Section], name: str) -> type[Section] | None:
    """Return the class of a nested table, or None if `name` is a plain setting."""
    annotation = section.model_fields[name].annotation if name in section.model_fields else None
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None


def takes_text(section: type[Section], name: str) -> bool:
    """Return whether a plain setting can be a text. Settings that only a chosen class has count as numbers."""
    kinds: list[Any] = [section.model_fields[name].annotation] if name in section.model_fields else []
    for kind in kinds:  # grows while it is read
        kinds += get_args(kind)
    return str in kinds or Any in kinds


def _either(reasons: Iterable[str]) -> str:
    """Return alternatives as text, with one "must be" at the start: "must be at least 1, or 'full'"."""
    first, *others = reasons
    if first.startswith("must be "):
        others = [other.removeprefix("must be ") for other in others]
    return ", or ".join([first, *others])


def _reason(message: str) -> str:
    text = message.removeprefix("Value error, ").replace("Input should be", "must be", 1)
    text = text.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    if "valid dictionary" in text:
        return "must be a table"
    return f"{text[0].lower()}{text[1:]}"


def _list_of(section: type[Section], name: str, found: Any) -> str:
    """Return "must be a list" with an example for a setting, or for an entry of it, such as `groups[1]`."""
    setting, _, entry = name.partition("[")
    kind = section.model_fields[setting].annotation if setting in section.model_fields else None
    for _ in range(1 + (entry != "")):
        kind = next((args[0] for args in map(get_args, (kind, *get_args(kind))) if args[-1:] == (...,)), None)
    choices = (kind, *get_args(kind))
    if choices[-1] is ...:
        return "must be a list of lists"
    if isinstance(found, str) and (str in choices or found in choices):
        return f'must be a list, such as ["{found}"]'
    examples = {int: "[0, 1, 2]", float: "[0.5, 0.9]", str: '["a", "b"]'}
    example = next((text for sample, text in examples.items() if sample in choices), "")
    return f"must be a list, such as {example}" if example else "must be a list"


def short(value: Any, limit: int = 60) -> str:
    """Return the repr of a value, shortened for an error message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _nearest(name: str, section: type[Section], table: str, whole: type[Section]) -> str:
    """Suggest a name with this word or a similar one in this table, the same name elsewhere, or all names here."""
    choice = CHOICES.get(table.rpartition(".")[2])
    if choice and (others := [other for other in choice if name in choice.resolve(other).model_fields]):
        return f"it is a setting of {', '.join(others)}: remove it, or change {table}.{choice.key}"
    known = [*section.model_fields, *([choice.key] if choice else [])]
    longer = [other for other in known if section is not whole and name in other.split("_")]
    if longer:
        return f"did you mean {' or '.join(longer)}?"
    elsewhere = [".".join(path) for path in _paths(whole) if path[-1] == name and ".".join(path[:-1]) != table]
    if elsewhere and not difflib.get_close_matches(name, known, cutoff=0.75):
        return f"did you mean {' or '.join(elsewhere)}?"
    return did_you_mean(name, known) or f"use one of {', '.join(known)}"


def _paths(section: type[Section]) -> Iterator[list[str]]:
    """Yield the path of every setting, including those of all choices."""
    for name in section.model_fields:
        yield [name]
        inner = section_of(section, name)
        if inner is not None:
            kinds = [inner, *map(CHOICES[name].resolve, CHOICES[name])] if name in CHOICES else [inner]
            paths = (tuple(path) for kind in kinds for path in _paths(kind))
            yield from ([name, *path] for path in dict.fromkeys(paths))
