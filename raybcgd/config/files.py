"""Read configs: TOML files that extend each other, overrides from the command line, and variants."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raybcgd.compare.settings import Variant
from raybcgd.config.choices import CHOICES
from raybcgd.config.explain import short
from raybcgd.config.schema import Config
from raybcgd.config.trust import check_trusted
from raybcgd.data.settings import unread_by
from raybcgd.errors import ConfigError, first_line
from raybcgd.lazy import search
from raybcgd.section import Section
from raybcgd.storage import FORMAT_VERSION, RunFolder

ONE_OF = {"cohort": ("clients_per_block", "clients_per_round"), "hosts": ("count", "max_count")}
"""Mutually exclusive settings, by table."""


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a TOML file and apply `key.subkey=value` overrides. It may name modules in its folder."""
    search(str(Path(path).resolve().parent))
    return make_config(override(read_tables(path), overrides))


def load_run_config(folder: RunFolder, overrides: Iterable[str] = (), trust: bool = False, call: str = "") -> Config:
    """Read the config of a run folder. Without `trust`, refuse one that names custom code or a Ray cluster.

    References in `overrides`, and classes in installed packages, need no trust. The error message says how to set
    `trust`: with the Python `call`, such as "run.config", or on the command line.
    """
    changes = dict(_parse_override(text) for text in overrides)
    tables = assign(run_tables(folder), changes)
    if not trust:
        check_trusted(tables, changes, folder, call)
    return make_config(_without_written_defaults(tables))


def run_tables(folder: RunFolder) -> dict[str, Any]:
    """Return the tables of a run folder's config. This imports nothing that they name."""
    if not folder.config.exists():
        if runs := sorted(path.parent for path in folder.path.glob("*/config.toml")):
            kind, command = ("sweep", "sweep") if (folder.path / "tune").is_dir() else ("comparison", "compare")
            raise ConfigError(
                f"{folder.path} is not a run, but holds runs; pass one of them, such as {runs[0]} (or, if it is a "
                f"{kind}, continue it with `raybcgd {command} CONFIG --out {folder.path} --resume auto`)"
            )
        raise ConfigError(
            f"{folder.path} holds no run (no config.toml); pass the folder of a run, or start one with `raybcgd train`"
        )
    tables = _toml(folder.config)
    if tables.get("version") != FORMAT_VERSION:
        raise ConfigError(
            f"{folder.path} was written by another version of raybcgd (its config.toml has no version = "
            f"{FORMAT_VERSION}); use that version, or start the run again with `raybcgd train`"
        )
    return tables


def make_config(values: Mapping[str, Any]) -> Config:
    """Return the config that nested tables describe. An error is one line that names the setting."""
    return Config(**values)


def read_tables(path: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file, merged over those of the files that it extends."""
    tables: dict[str, Any] = {}
    for file in reversed(config_files(path)):
        found = _without_written_defaults(_toml(file))
        tables = _merged(tables, {key: value for key, value in found.items() if key != "extends"})
    return tables


def _without_written_defaults(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a config. One that a run wrote has all settings; defaults of its method count as not set.

    Otherwise they would replace the defaults of other methods in a comparison. The same goes for codecs.
    """
    result = dict(tables)
    for name in ("algorithm", "wire") if "version" in tables else ():
        if isinstance(table := tables.get(name), Mapping):
            result[name] = CHOICES[name].without_defaults(table)
    return result


def config_files(path: str | Path) -> list[Path]:
    """Return the path of a config and of the files that it extends, the base last."""
    files = [Path(path)]
    while (base := _toml(files[-1], files[:-1]).get("extends")) is not None:
        if not isinstance(base, str):
            raise ConfigError(f"extends = {short(base)} in {files[-1]} is not a path; name another config")
        extended = files[-1].parent / base
        if extended.resolve() in {file.resolve() for file in files}:
            raise ConfigError(f'extends = "{base}" in {files[-1]} is circular; name another config')
        files.append(extended)
    return files


def _toml(path: Path, children: Sequence[Path] = ()) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # Windows editors start files with a byte order mark
    except OSError as error:
        extended = f", which {children[-1]} extends" if children else ""
        raise ConfigError(f"cannot read the config {path}{extended}: {error.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not valid TOML: it is not UTF-8 text; pass a config saved as UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{path} is not a config: its values are nested too deeply; fix the file") from None
    except ValueError as error:  # not only TOMLDecodeError: an integer can have too many digits
        raise ConfigError(f"{path} is not valid TOML: {first_line(error)}; fix the file") from None


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `under` updated with `over`. Nested tables are merged, other values replaced."""
    result = _deep_copy(under)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            result[key] = _merged(_still_valid(key, old, value), value)
        else:
            result[key] = value
    return result


def _still_valid(table: str, under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Remove from `under` what `over` excludes, and what the choice in `over`, such as a method, does not have."""
    kept = dict(under)
    choice = CHOICES.get(table)
    if choice is not None and choice.key in over:
        new = over[choice.key]
        if choice.name_of(new) != choice.name_of(kept.get(choice.key, "")):
            kept = choice.keep_valid(kept, new)
    if table == "data" and over.get("source", kept.get("source")) != kept.get("source"):
        unread = unread_by(over["source"])
        kept = {key: value for key, value in kept.items() if key not in unread}
    if any(key in over for key in ONE_OF.get(table, ())):
        kept = {key: value for key, value in kept.items() if key not in ONE_OF[table]}
    return kept


def tables_of(section: Section) -> dict[str, Any]:
    """Return the settings that were set explicitly, as tables for `make_config`. Python objects stay objects."""
    tables: dict[str, Any] = {}
    for name in (name for name in type(section).model_fields if name in section.model_fields_set):
        value = getattr(section, name)
        if isinstance(value, Section):
            choice = {CHOICES[name].key: type(value)} if name in CHOICES else {}
            tables[name] = {**choice, **tables_of(value)}
        else:
            tables[name] = value
    return tables


def vary(base: Config, variant: Variant) -> Config:
    """Return the config of one run of a comparison."""
    # An empty table changes nothing, although an empty `data.phases` would turn phases on.
    changes = {key: value for key, value in tables_of(variant).items() if key != "label" and value not in (None, {})}
    data = {key: changes.pop(key) for key in ("partition", "phases") if key in changes}
    changes |= {"data": data} if data else {}
    tables = _merged(tables_of(base), changes)
    tables.pop("compare", None)
    return make_config(tables)


def override(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of nested tables with `key.subkey=value` settings applied. Values are TOML."""
    return assign(values, dict(_parse_override(text) for text in overrides))


def assign(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of nested tables with `settings` applied. Their keys are paths such as "algorithm.lr"."""
    result = _deep_copy(values)
    tables: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        path, _, name = key.rpartition(".")
        tables.setdefault(path, {})[name] = value
    for path, new in tables.items():
        table = result
        names = path.split(".") if path else []
        for name in names:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{path}.{next(iter(new))} cannot be set: {name} is not a table; correct the key")
        kept = _still_valid(names[-1] if names else "", table, new)
        table.clear()
        table.update(kept, **_deep_copy(new))
    return result


def overridden(overrides: Iterable[str]) -> dict[str, str]:
    """Return the `key.subkey=value` texts by the keys that they set, down to the keys of inline tables."""
    found: dict[str, str] = {}
    for text in overrides:
        key, value = _parse_override(text)
        found |= dict.fromkeys(_keys(key, value), text)
    return found


def _keys(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _keys(f"{key}.{name}", inner)
    else:
        yield key


MISSING = object()
"""What `value_at` returns if a config has no such setting."""


def value_at(config: Section, key: str) -> Any:
    """Return the value of a setting such as "algorithm.lr". The value of a choice, such as a method, is its class."""
    found: Any = config
    *tables, name = key.split(".")
    for table in tables:
        found = found.get(table) if isinstance(found, Mapping) else getattr(found, table, None)
    if tables and tables[-1] in CHOICES and name == CHOICES[tables[-1]].key:
        return type(found)
    return found.get(name, MISSING) if isinstance(found, Mapping) else getattr(found, name, MISSING)


def _parse_override(text: str) -> tuple[str, Any]:
    key, equals, raw = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path):
        raise ConfigError(f"--set {text}: write it as key=value, such as --set algorithm.lr=0.05")
    return ".".join(path), _toml_value(raw)


def _toml_value(raw: str) -> Any:
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        return raw.strip()  # a bare word is a string


def _deep_copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _deep_copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}
