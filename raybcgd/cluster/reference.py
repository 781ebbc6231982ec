"""The reference of all values, generated from their declarations."""

from collections.abc import Iterator
from typing import Any

from pydantic_core import PydanticUndefined

from raybcgd.cluster.settings import Values
from raybcgd.config.explain import section_of
from raybcgd.section import Section


def reference() -> str:
    """Return cluster/VALUES.md."""
    lines = [
        "# Values of a cluster",
        "",
        "`raybcgd cluster render VALUES.toml` reads these values. A file needs one of the tables `[kubernetes]`,",
        "`[aws]` and `[gcp]`. `make dashboards` generates this page from `raybcgd/cluster/settings.py`.",
    ]
    for path, section in _tables(Values, ()):
        title = f"[{'.'.join(path)}]" if path else "Top level"
        text = "" if not path else (section.__doc__ or "").partition(": ")[2].strip()
        lines += ["", f"## {title}", *(["", f"{text[:1].upper()}{text[1:]}"] if text else [])]
        lines += ["", "| Value | Default | Meaning |", "|---|---|---|", *_rows(section)]
    return "\n".join(lines) + "\n"


def _tables(section: type[Section], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], type[Section]]]:
    yield path, section
    for name in section.model_fields:
        inner = section_of(section, name)
        if inner is not None:
            yield from _tables(inner, (*path, name))


def _rows(section: type[Section]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if section_of(section, name) is None:
            default = _default(field.get_default(call_default_factory=True))
            yield f"| `{name}` | {default} | {' '.join((field.description or '').split())} |"


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value in (None, [], {}):
        return "not set"
    text = f"{value}".lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else f"{value}"
    return f"`{text}`"
