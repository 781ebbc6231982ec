"""The whole experiment as one frozen object, read from TOML. Each table's class lives with the code that it steers."""

import difflib
import importlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import Field, SerializeAsAny, ValidationError, field_serializer, field_validator

from raybcgd.algorithms import METHODS, Algorithm, FedBCGDPlus
from raybcgd.analysis.settings import AnalysisConfig
from raybcgd.client.batches import LocalConfig
from raybcgd.data.sources import DataConfig
from raybcgd.errors import ConfigError
from raybcgd.model.blocks import BlocksConfig
from raybcgd.model.zoo import ModelConfig
from raybcgd.plan.cohort import CohortConfig
from raybcgd.record.checkpoint import CheckpointConfig
from raybcgd.record.metrics import MetricsConfig
from raybcgd.section import Section
from raybcgd.server.evaluate import EvaluationConfig
from raybcgd.server.placement import HostsConfig
from raybcgd.wire import CODECS, Codec, Raw


class Variant(Section):
    """`[[compare.variants]]`: what is different in one run of a comparison. Data, model and seed never are."""

    label: str | None = None
    """Its name in tables and plots; the method's unless given."""
    rounds: Annotated[int, Field(ge=1)] | None = None
    """Rounds of this run; those of the config unless given."""
    algorithm: dict[str, Any] = Field(default_factory=dict)
    """Settings that replace those of `[algorithm]`; with another `name`, the others carry over where it has them."""
    blocks: dict[str, Any] = Field(default_factory=dict)
    """Settings that replace those of `[blocks]`."""
    cohort: dict[str, Any] = Field(default_factory=dict)
    """Settings that replace those of `[cohort]`."""
    local: dict[str, Any] = Field(default_factory=dict)
    """Settings that replace those of `[local]`."""
    wire: dict[str, Any] = Field(default_factory=dict)
    """Settings that replace those of `[wire]`."""


class CompareConfig(Section):
    """`[compare]`: what `raybcgd compare` runs, and the accuracy at which it counts."""

    target: Annotated[float, Field(gt=0, le=1)] = 0.9
    """The accuracy to which uploads are counted."""
    variants: tuple[Variant, ...] = tuple(
        Variant(algorithm={"name": name}) for name in ("fedavg", "fedavgm", "fedbcgd", "fedbcgd+")
    )


class Config(Section):
    """An experiment."""

    seed: int = 0
    """Every random choice is a function of this and of what it is for."""
    rounds: Annotated[int, Field(ge=1)] = 60
    """R, rounds of the run."""
    engine: Literal["ray", "local"] = "ray"
    """Client hosts as Ray actors, or everything in this process; the bits are the same."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    blocks: BlocksConfig = BlocksConfig()
    algorithm: SerializeAsAny[Algorithm] = FedBCGDPlus()
    local: LocalConfig = LocalConfig()
    cohort: CohortConfig = CohortConfig()
    wire: SerializeAsAny[Codec] = Raw()
    hosts: HostsConfig = HostsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    metrics: MetricsConfig = MetricsConfig()
    analysis: AnalysisConfig | None = None
    """What is worked out from the last checkpoint when a run has ended; nothing unless the table is there."""
    compare: CompareConfig | None = None
    """The runs of a comparison; a single run takes no notice of it."""

    @field_validator("algorithm", mode="before")
    @classmethod
    def _algorithm_by_name(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        settings = dict(value)
        name = str(settings.pop("name", FedBCGDPlus.name))
        kind = method(name)
        try:
            return kind.model_validate(settings)
        except ValidationError as error:
            raise ConfigError(_one_line(error, kind, "algorithm", f"a setting of {name}")) from None

    @field_validator("wire", mode="before")
    @classmethod
    def _codec_by_name(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        name = str(value.get("codec", "raw"))
        if name not in CODECS:
            raise ConfigError(f'wire.codec = "{name}" is unknown; use one of {", ".join(CODECS)}')
        try:
            return CODECS[name].model_validate(value)
        except ValidationError as error:
            raise ConfigError(_one_line(error, CODECS[name], "wire", f"a setting of {name}")) from None

    @field_serializer("algorithm")
    def _algorithm_with_name(self, algorithm: Algorithm) -> dict[str, Any]:
        return {"name": algorithm_name(algorithm), **algorithm.model_dump(exclude_none=True)}

    def to_toml(self) -> str:
        """The config as a TOML file that reads back to the same config."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def method(name: str) -> type[Algorithm]:
    """The class of a method by its name, or by `package.module:Class`."""
    if name in METHODS:
        return METHODS[name]
    if ":" not in name:
        known = f"use one of {', '.join(METHODS)}, or package.module:Class"
        raise ConfigError(f'algorithm.name = "{name}" is unknown; {_did_you_mean(name, METHODS) or known}')
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f'algorithm.name = "{name}" cannot be imported: {error}; correct it') from None
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(f'algorithm.name = "{name}" is not a subclass of raybcgd.Algorithm; name one that is')
    return found


def algorithm_name(algorithm: Algorithm) -> str:
    """The name that finds an algorithm's class again."""
    kind = type(algorithm)
    return kind.name if METHODS.get(kind.name) is kind else f"{kind.__module__}:{kind.__qualname__}"


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a TOML file, with `key.subkey=value` overrides on top."""
    return make_config(override(read_tables(path), overrides))


def read_tables(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file, on top of those of the file that it `extends`, if any."""
    tables: dict[str, Any] = {}
    for file in reversed(config_files(path)):
        tables = _merged(tables, {key: value for key, value in _toml(file).items() if key != "extends"})
    return tables


def config_files(path: str | Path) -> list[Path]:
    """A config's file, and those that it extends, one after another."""
    files = [Path(path)]
    while (base := _toml(files[-1], files[:-1]).get("extends")) is not None:
        if not isinstance(base, str):
            raise ConfigError(f"extends = {_short(base)} in {files[-1]}: must be the name of another config")
        under = files[-1].parent / base
        if under.resolve() in {file.resolve() for file in files}:
            raise ConfigError(f'extends = "{base}" in {files[-1]} leads back to itself; name another config')
        files.append(under)
    return files


def _toml(path: Path, above: Sequence[Path] = ()) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        said = f" that {above[-1]} extends" if above else ""
        raise ConfigError(f"cannot read the config {path}{said}: {error.strerror}; check its name") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; correct it") from None


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables on top of others; whatever is not a table replaces what was there."""
    result = _deep_copy(under)
    for key, value in over.items():
        there = result.get(key)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            result[key] = _merged(_still_valid(key, there, value), value)
        else:
            result[key] = value
    return result


_ONE_OF = {"cohort": ("clients_per_block", "clients_per_round"), "hosts": ("count", "max_count")}
"""Settings of which a table has one at most."""


def _still_valid(table: str, under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """What is left of a table when others of its settings come on top: another method or codec has other settings."""
    kept = dict(under)
    if table == "algorithm" and over.get("name", kept.get("name")) != kept.get("name"):
        known = method(str(over["name"])).model_fields
        kept = {key: value for key, value in kept.items() if key in known}
    if table == "wire" and over.get("codec", kept.get("codec")) != kept.get("codec"):
        kept = {}
    if any(key in over for key in _ONE_OF.get(table, ())):
        kept = {key: value for key, value in kept.items() if key not in _ONE_OF[table]}
    return kept


def make_config(values: Mapping[str, Any]) -> Config:
    """Validate nested tables; what is wrong comes back as one line that names the setting."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_one_line(error, Config)) from None


def vary(base: Config, variant: Variant) -> Config:
    """The config of one run of a comparison."""
    settings = dict(variant.algorithm)
    name = str(settings.pop("name", algorithm_name(base.algorithm)))
    carried = base.algorithm.model_dump(exclude_unset=True)
    shared = {key: value for key, value in carried.items() if key in method(name).model_fields}
    tables: dict[str, Any] = {"algorithm": {"name": name, **shared, **settings}}
    for key in ("blocks", "cohort", "local", "wire"):
        under = getattr(base, key).model_dump(exclude_unset=True)
        if key == "wire":
            under["codec"] = base.wire.codec
        tables[key] = {**_still_valid(key, under, getattr(variant, key)), **getattr(variant, key)}
    if variant.rounds is not None:
        tables["rounds"] = variant.rounds
    rest = {key: getattr(base, key) for key in Config.model_fields if key not in tables and key != "compare"}
    return make_config({**rest, **tables})


def override(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of nested tables in which `key.subkey=value` settings, with TOML values, have been replaced.

    A method's settings that another one has not go with it.
    """
    parsed = [(text, *_parsed(text)) for text in overrides]
    result = _deep_copy(values)
    for name in {path[0] for _, path, _ in parsed if len(path) > 1}:
        given = {path[1]: value for _, path, value in parsed if path[0] == name and len(path) == 2}
        if isinstance(result.get(name), dict):
            result[name] = _still_valid(name, result[name], given)
    for text, path, value in parsed:
        table = result
        for name in path[:-1]:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {text}: {name} is not a table; correct the key")
        table[path[-1]] = value
    return result


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


def _one_line(error: ValidationError, root: type[Section], prefix: str = "", what: str = "a setting") -> str:
    """The first thing that pydantic found wrong, as one line that names the setting and what it may be."""
    errors = error.errors(include_url=False)
    first = errors[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return str(cause)
    path, section = _setting(first["loc"], root)
    setting = ".".join([prefix, *path] if prefix else path) or "config"
    same = [e for e in errors if _setting(e["loc"], root)[0] == path]
    more = f" (and {len(errors) - len(same)} more)" if len(same) < len(errors) else ""
    if first["type"] == "extra_forbidden":
        return f"{setting} is not {what}; {_nearest(path[-1], section)}{more}"
    # A setting of several types fails once for each of them.
    reasons = dict.fromkeys(_reason(e["msg"]) for e in same)
    return f"{setting} = {_short(same[0]['input'])}: {', or '.join(reasons)}{more}"


def _setting(location: tuple[int | str, ...], root: type[Section]) -> tuple[list[str], type[Section]]:
    """The setting that pydantic means, without the names it gives to the members of a union; and its table's class."""
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
    """The class of a table inside a table's class, where `name` is one."""
    annotation = section.model_fields[name].annotation if name in section.model_fields else None
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None


def _reason(message: str) -> str:
    text = message.removeprefix("Value error, ").replace("Input should be", "must be", 1)
    if "valid dictionary" in text:
        return "must be a table"
    return f"{text[0].lower()}{text[1:]}"


def _short(value: Any, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _nearest(name: str, section: type[Section]) -> str:
    """The settings that could have been meant: a like name here, or the same name in another table."""
    known = [*section.model_fields, *(["name"] if issubclass(section, Algorithm) else [])]
    elsewhere = [".".join(path) for path in _paths(Config) if path[-1] == name]
    if elsewhere and not difflib.get_close_matches(name, known):
        return f"did you mean {' or '.join(elsewhere)}?"
    return _did_you_mean(name, known) or f"known here: {', '.join(known)}"


def _paths(section: type[Section]) -> Iterator[list[str]]:
    """Every setting of a table and of the tables in it."""
    for name in section.model_fields:
        yield [name]
        inner = section_of(section, name)
        if inner is not None:
            yield from ([name, *path] for path in _paths(inner))


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=1)
    return f"did you mean {close[0]}?" if close else ""
