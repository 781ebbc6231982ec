"""Reading configs: TOML files that extend each other, overrides from the command line, and variants."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raybcgd.compare.settings import Variant
from raybcgd.config.explain import explain, short
from raybcgd.config.schema import CHOICES, VERSION, Config
from raybcgd.errors import ConfigError
from raybcgd.storage import RunFolder

_ONE_OF = {"cohort": ("clients_per_block", "clients_per_round"), "hosts": ("count", "max_count")}
"""Settings of which a table has at most one."""


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a TOML file and apply `key.subkey=value` overrides."""
    return make_config(override(read_tables(path), overrides))


def load_run_config(folder: RunFolder, overrides: Iterable[str] = ()) -> Config:
    """Read the config of a run folder."""
    if not folder.config.exists():
        raise ConfigError(f"{folder.path} holds no run (no config.toml); give the folder of a run")
    tables = read_tables(folder.config)
    if tables.get("version") != VERSION:
        raise ConfigError(
            f"{folder.path} was written by another version of raybcgd (its config.toml has no version = {VERSION}); "
            "use that version, or start the run again with `raybcgd train`"
        )
    return make_config(override(tables, overrides))


def make_config(values: Mapping[str, Any]) -> Config:
    """Validate nested tables; an error is one line that names the setting."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def read_tables(path: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file merged over those of the file that it `extends`."""
    tables: dict[str, Any] = {}
    for file in reversed(config_files(path)):
        tables = _merged(tables, {key: value for key, value in _toml(file).items() if key != "extends"})
    return tables


def config_files(path: str | Path) -> list[Path]:
    """Return a config's file and the files that it extends, in order."""
    files = [Path(path)]
    while (base := _toml(files[-1], files[:-1]).get("extends")) is not None:
        if not isinstance(base, str):
            raise ConfigError(f"extends = {short(base)} in {files[-1]}: must be the name of another config")
        under = files[-1].parent / base
        if under.resolve() in {file.resolve() for file in files}:
            raise ConfigError(f'extends = "{base}" in {files[-1]} leads back to itself; name another config')
        files.append(under)
    return files


def _toml(path: Path, above: Sequence[Path] = ()) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        extended = f", which {above[-1]} extends" if above else ""
        raise ConfigError(f"cannot read the config {path}{extended}: {error.strerror}; check its name") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; correct it") from None


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested tables; anything that is not a table replaces what was there."""
    result = _deep_copy(under)
    for key, value in over.items():
        there = result.get(key)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            result[key] = _merged(_still_valid(key, there, value), value)
        else:
            result[key] = value
    return result


def _still_valid(table: str, under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a table that remain valid under new ones: another method, for example, has others."""
    kept = dict(under)
    if table in CHOICES:
        key, registry = CHOICES[table]
        if key in over and over[key] != kept.get(key):
            kept = registry.keep_valid(kept, over[key])
    if any(key in over for key in _ONE_OF.get(table, ())):
        kept = {key: value for key, value in kept.items() if key not in _ONE_OF[table]}
    return kept


def vary(base: Config, variant: Variant) -> Config:
    """Return the config of one run of a comparison."""
    tables: dict[str, Any] = {}
    for key in ("algorithm", "blocks", "cohort", "local", "wire"):
        under = getattr(base, key).model_dump(exclude_unset=True)
        if key in CHOICES:
            choice, registry = CHOICES[key]
            under[choice] = registry.name_of(type(getattr(base, key)))
        tables[key] = _merged({key: under}, {key: getattr(variant, key)})[key]
    if variant.rounds is not None:
        tables["rounds"] = variant.rounds
    rest = {key: getattr(base, key) for key in Config.model_fields if key not in tables and key != "compare"}
    return make_config({**rest, **tables})


def override(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of nested tables with `key.subkey=value` settings applied. Values are TOML."""
    parsed = [(text, *_parsed(text)) for text in overrides]
    result = _deep_copy(values)
    for place in {tuple(path[:-1]) for _, path, _ in parsed if len(path) > 1}:
        given = {path[-1]: value for _, path, value in parsed if tuple(path[:-1]) == place}
        table, parent = _find(result, place)
        if isinstance(table, dict):
            parent[place[-1]] = _still_valid(place[-1], table, given)
    for text, path, value in parsed:
        table = result
        for name in path[:-1]:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {text}: {name} is not a table; correct the key")
        table[path[-1]] = value
    return result


def _find(tables: dict[str, Any], path: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Return the table at a path, or None, and the table around it."""
    parent: Any = tables
    for name in path[:-1]:
        parent = parent.get(name) if isinstance(parent, dict) else None
    return (parent.get(path[-1]), parent) if isinstance(parent, dict) else (None, tables)


def _parsed(text: str) -> tuple[list[str], Any]:
    key, equals, raw = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path):
        raise ConfigError(f"--set {text}: write it as key=value, such as --set algorithm.lr=0.05")
    return path, _toml_value(raw)


def _toml_value(raw: str) -> Any:
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw.strip()  # a bare word is a string


def _deep_copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _deep_copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}
